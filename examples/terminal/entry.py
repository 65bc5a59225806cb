"""The taskset as `rollbook serve` takes it: `examples/terminal/entry.py:backend`, in sandboxes.

`unsandboxed` is the same without: what the model writes then runs as you, on this machine. Only for machines that
cannot make sandboxes, and for policies whose every command you know.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rollbook.tasks import (
    BubblewrapRuntime,
    ProgramHarness,
    RolloutLimits,
    Runtime,
    SubprocessRuntime,
    TaskBackend,
    TaskData,
)

AGENT = Path(__file__).with_name("agent.py")
AGENT_INSIDE = ".rollbook/agent.py"
# The interpreter behind whatever environment this is: the agent needs no packages.
PYTHON = Path(os.path.realpath(sys.executable))
LIMITS = RolloutLimits(max_turns=12, max_total_tokens=200_000)
MAX_CONCURRENT = 4


class ShellAgent(ProgramHarness):
    """The program of `agent.py`, brought into the runtime."""

    def __init__(self) -> None:
        super().__init__([str(PYTHON), "-B", AGENT_INSIDE], resumes=True)

    async def setup(self, runtime: Runtime, data: TaskData) -> None:
        """Put the program where it runs."""
        await runtime.write(AGENT_INSIDE, AGENT.read_bytes())


def backend() -> TaskBackend:
    """Ten tasks for an agent at a shell, each in a sandbox of its own."""
    base = Path(sys.base_prefix).resolve()
    shown = () if base.is_relative_to("/usr") else (base,)  # all of /usr is seen anyway
    return _backend(functools.partial(BubblewrapRuntime, shown=shown))


def unsandboxed() -> TaskBackend:
    """The same on the machine itself. Programs may do there whatever you may."""
    return _backend(SubprocessRuntime)


def _backend(runtime: Callable[..., Runtime]) -> TaskBackend:
    return TaskBackend(
        task="terminal:Terminal",
        harness=ShellAgent(),
        runtime=runtime,
        limits=LIMITS,
        max_concurrent=MAX_CONCURRENT,
    )
