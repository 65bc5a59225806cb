"""A backend of tasks for tests: one that sums, executed as a runner does it, with everything that it told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollbook.backends.base import ExecutionOutcome, ExecutionRequest
from rollbook.sdk.context import RolloutContext
from rollbook.sdk.values import MessageDict
from rollbook.tasks.backend import TaskBackend
from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.base import Harness
from rollbook.tasks.hooks import metric, reward
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from rollbook_client.events import Event
from rollbook_client.statuses import RolloutStatus
from tests.contract.tasks.playing import SAID
from tests.support.model_server import ModelServer

ANSWER: MessageDict = {"role": "assistant", "content": "42"}


class Sum(TaskData, frozen=True, kw_only=True):
    """Data with a field of its own."""

    answer: str = "42"


class Sums(Task[Sum]):
    """Is right where the answer is the data's."""

    @reward
    def right(self, trace: Trace, data: Sum) -> float:
        assert trace.final_branch is not None
        return float(trace.final_branch.messages[-1]["content"] == data.answer)

    @reward(weight=0)
    def never_known(self) -> None:
        return None

    @metric
    def turns(self, trace: Trace) -> float:
        return float(trace.num_turns)


class Recorder:
    """What an execution told while it ran."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.phases: list[RolloutStatus] = []
        self.secrets: list[str] = []

    def hide(self, url: str, key: str | None) -> None:
        """Take what must not get into logs."""
        self.secrets += [url, key or ""]

    def of[E: Event](self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


class Backend:
    """A backend with one folder of runtimes, and executions over a model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told = Recorder()
        self.made: TaskBackend | None = None

    def make(self, harness: Harness, *, task: Any = Sums, **options: Any) -> TaskBackend:
        """The backend itself."""
        self.made = TaskBackend(
            task=task, harness=harness, runtime=lambda: SubprocessRuntime(parent=self.folder), **options
        )
        return self.made

    async def execute(
        self, backend: TaskBackend, url: str, *, prompt: Sequence[MessageDict] = SAID, **request: Any
    ) -> ExecutionOutcome:
        """One execution as a runner does it."""
        record = lambda events: self.told.events.extend(events)  # noqa: E731
        context = RolloutContext(
            url, "key", rollout_id="r-1", on_phase=self.told.phases.append, on_record=record, on_secrets=self.told.hide
        )
        with context:
            return await backend.execute(ExecutionRequest(id="r-1", prompt=list(prompt), **request))

    @property
    def folders(self) -> list[Path]:
        """What runtimes are left."""
        return list(self.folder.iterdir()) if self.folder.exists() else []


def url_of(model: ModelServer) -> str:
    """Where the model takes chat completions."""
    return f"{model.url}/chat/completions"
