"""Ten small pieces of work at a shell. Whether one is done is found out by running code where it was done.

Each task is a folder of `tasks/`: `prompt.md` is what the agent reads, `setup.sh` makes the files, `check.sh` ends with
0 where the work is done and with 1 where it is not. The agent sees the working folder, and neither of the scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from rollbook.tasks import (
    Completed,
    Response,
    Runtime,
    Task,
    TaskData,
    Timeouts,
    Trace,
    metric,
    reward,
    sample_messages,
    stop,
)

TASKS = Path(__file__).with_name("tasks")
SCRIPT_TIMEOUT_SEC = 30.0
SHOWN_CHARS = 2_000


class TerminalData(TaskData, frozen=True, kw_only=True):
    """One of the ten; its id is the name of its folder."""

    timeouts: Timeouts = Timeouts(setup=60, agent=300, finalize=60, scoring=60)
    changes: bool = False
    """Whether the work is to change files that are there, rather than to write new ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.id not in _names():  # an id comes from outside, and becomes part of a path
            raise ValueError(f"there is no terminal task {self.id!r}; the tasks are: {', '.join(_names())}")

    def script(self, name: str) -> str:
        """One of the task's scripts."""
        return (TASKS / self.id / f"{name}.sh").read_text(encoding="utf-8")


class Inputs(Struct):
    """What a rollout remembers: the files that were there when it began, by their hashes."""

    hashes: str = ""


class Terminal(Task[TerminalData]):
    """Sets the files up, lets the agent work, and looks at what has become of them."""

    state_type = Inputs

    def rows(self) -> Iterator[dict[str, Any]]:
        """The ten tasks, for whoever admits rollouts."""
        for name in _names():
            settings = json.loads((TASKS / name / "task.json").read_text(encoding="utf-8"))
            yield {"id": name, "prompt": (TASKS / name / "prompt.md").read_text(encoding="utf-8"), **settings}

    async def setup(self, data: TerminalData, runtime: Runtime) -> None:
        """Make the files."""
        made = await _run(runtime, data.script("setup"))
        if made.exit_code:
            raise RuntimeError(f"the files of {data.id} could not be made: {_said(made)}")
        if not data.changes:
            self.state.hashes = await _hashes(runtime)

    async def finalize(self, data: TerminalData, runtime: Runtime, trace: Trace) -> None:
        """Note which of the files that were there are no longer as they were."""
        if not data.changes:
            after = set((await _hashes(runtime)).splitlines())
            trace.info["changed"] = [line for line in self.state.hashes.splitlines() if line not in after]

    @stop
    def gave_up(self, response: Response) -> bool:
        """An agent that says so need not be asked again."""
        return str(response.message.get("content")).startswith("GIVE UP")

    @reward
    async def solved(self, data: TerminalData, trace: Trace, runtime: Runtime | None) -> float:
        """Whether the check says so. Where a stored trace is scored again, the place is gone; its check was kept."""
        if runtime is not None:
            checked = await _run(runtime, data.script("check"))
            trace.info["check"] = {"exit_code": checked.exit_code, "said": _said(checked)}
        kept = trace.info["check"]
        if kept["exit_code"] not in (0, 1):
            raise RuntimeError(f"the check of {data.id} itself failed with {kept['exit_code']}: {kept['said']}")
        return float(kept["exit_code"] == 0)

    @reward(weight=-0.5)
    def damage(self, data: TerminalData, trace: Trace) -> float | None:
        """Whether a file that was there has changed; nothing to say where the task is to change them."""
        return None if data.changes else float(bool(trace.info["changed"]))

    @metric
    def commands(self, trace: Trace) -> int:
        """How many commands the agent ran."""
        return sum(message["role"] == "tool" for message in sample_messages(trace))


def _names() -> list[str]:
    return sorted(folder.name for folder in TASKS.iterdir() if folder.is_dir())


async def _run(runtime: Runtime, script: str) -> Completed:
    # As an argument, not as a file: there is nothing of it for the agent to find.
    return await runtime.run(["/bin/sh", "-e", "-c", script], timeout_sec=SCRIPT_TIMEOUT_SEC)


async def _hashes(runtime: Runtime) -> str:
    """A line for each file, links and what is hidden left out."""
    listed = await _run(runtime, "find . -type f ! -path './.*' ! -path '*/.git/*' -exec sha256sum {} +")
    if listed.exit_code:
        raise RuntimeError(f"the files cannot be read: {_said(listed)}")
    return listed.stdout.decode("utf-8", "replace")


def _said(completed: Completed) -> str:
    return (completed.stdout + completed.stderr).decode("utf-8", "replace").strip()[-SHOWN_CHARS:]
