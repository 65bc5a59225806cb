"""What a harness is: the program that plays the agent, one segment of an exchange at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct, field

from rollbook.sdk.values import MessageDict, shown
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import Hooked, Kind
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.toolsets import ToolsetIndex

__all__ = ["Exchange", "Harness", "HarnessError", "checked_harness"]


class HarnessError(Exception):
    """The program did not end well; the text says how, with the last of what it wrote."""


def checked_harness(harness: Any) -> Harness:
    """What a rollout is given to be played by; raises ``TypeError`` for what is no harness, a class of them too."""
    if not isinstance(harness, Harness):
        raise TypeError(f"harness must be a Harness, as ProgramHarness([…]) is; got {shown(harness)}")
    return harness


class Exchange(Struct, kw_only=True):
    """One segment: what the program starts from and where it finds the model.

    `messages` is the whole conversation: the prompt, or for a later segment what was said so far and the user's new
    messages. `base_url` is for OpenAI clients, `chat_url` is opaque like the policy's own; both take `api_key`, which
    is good for this rollout alone. `model` is the name to ask for.
    """

    data: TaskData
    messages: list[MessageDict]
    base_url: str
    chat_url: str
    api_key: str
    runtime: Runtime
    model: str = "policy"
    tools: ToolsetIndex
    """The task's tools, for harnesses that offer them."""
    tools_url: str | None = None
    """Where programs find the same tools, by the Model Context Protocol; None where the task has none."""
    remaining_sec: float | None = None
    """What is left of the agent's budget; the caller enforces it."""
    info: dict[str, Any] = field(default_factory=dict)
    """The trace's own: what a harness puts here is kept with the trace. It must have a JSON form and hold no secret."""


class Harness(Hooked, ABC):
    """Runs the agent. Every rollout works with a shallow copy, so attributes set in `setup` are its own.

    Methods marked with `@metric` are its own signals, scored beside the task's.
    """

    hook_kinds: ClassVar[frozenset[Kind]] = frozenset({"metric"})
    name: ClassVar[str] = "harness"
    resumes: ClassVar[bool] = False
    """Whether `run` may be called again, with the conversation so far; without it an exchange has one segment."""

    def measurements(self) -> Mapping[str, float]:
        """Numbers that the program itself reported; recorded as metrics, unless the rollout failed."""
        return {}

    async def setup(self, runtime: Runtime, data: TaskData) -> None:  # most need none
        """Prepare the runtime; shares its deadline with the task's set-up."""

    @abstractmethod
    async def run(self, exchange: Exchange) -> list[MessageDict] | None:
        """Play the agent until it yields: it is done, or waits for the user.

        What is returned, if anything, is the conversation as the program has it; it counts only where the program
        made no model call of its own. Raises whatever went wrong; a cancellation ends the program.
        """

    async def close(self) -> None:  # most hold nothing between segments
        """End what goes on between segments; a failure is only warned of."""

    async def clean_up(self) -> None:  # most leave nothing behind
        """Remove what `setup` made outside of the runtime; called once, after scoring, however the rollout ended."""
