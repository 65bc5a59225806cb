"""Rollouts that are over with the traces they left, and tasks to score them with once more."""

from __future__ import annotations

import base64

from rollbook.ledger import commands as cmd
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import metric, reward
from rollbook.tasks.judge import Judge
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.calls import ModelCall
from rollbook.traces.sample import sample_messages
from rollbook.traces.storage import dumps, pack
from rollbook.traces.trace import Span, Trace
from rollbook_client.events import Event, RewardRecorded, TraceSaved
from tests.support import ledger as make


class Sum(TaskData, frozen=True, kw_only=True):
    """A question with its answer."""

    answer: str


class Sums(Task[Sum]):
    """Half a point for a right answer, and half for a short one."""

    @reward(weight=0.5)
    def right(self, trace: Trace, data: Sum) -> float:
        return float(sample_messages(trace)[-1]["content"] == data.answer)

    @reward(weight=0.5)
    def short(self, trace: Trace) -> float | None:
        length = len(sample_messages(trace)[-1]["content"])
        return None if length > 10 else float(length < 3)

    @metric
    def length(self, trace: Trace) -> int:
        print("scoring code may print")
        return len(sample_messages(trace)[-1]["content"])


class Strict(Sums):
    """The same, but one method fails on what is long."""

    @reward(weight=0.5)
    def short(self, trace: Trace) -> float:
        length = len(sample_messages(trace)[-1]["content"])
        if length > 2:
            raise ValueError(f"{length} characters are too many")
        return 1.0


class Away(Task[Sum]):
    """Scores of the same names, with a judge whose server is away, and with methods of which none works any more."""

    judges = (Judge("style", "grader-1", rubric="Is it nice?", base_url_env="ROLLBOOK_TEST_NO_SUCH_VARIABLE"),)

    @reward(weight=0.5)
    def right(self, trace: Trace) -> float:
        return float(trace.info["checked"])

    @reward(weight=0.5)
    def short(self) -> float:
        raise ConnectionError("the checker is gone")

    @metric
    def length(self, trace: Trace) -> int:
        return int(trace.info["length"])


class Rooted(Task[Sum]):
    """One method looks into the runtime, one would if there were any, and one has no need of it."""

    @reward(weight=0.5)
    async def right(self, runtime: Runtime) -> float:
        return float((await runtime.run("cat answer.txt")).stdout == b"42")

    @reward
    def short(self, trace: Trace) -> float:
        return float(len(sample_messages(trace)[-1]["content"]) < 3)

    @metric
    async def length(self, runtime: Runtime | None) -> int | None:
        return None if runtime is None else 1


class Doubled(Task[TaskData]):
    """A reward and a metric with one name."""

    @reward(weight=2)
    def score(self) -> dict[str, float]:
        return {"turns": 0.5}

    @metric
    def turns(self, trace: Trace) -> int:
        return trace.num_turns


class Broken:
    """No task at all."""


def played(answer: str = "42", *, expected: str = "42", ok: bool = True, **fields: object) -> Trace:
    """The trace of a rollout with one turn."""
    trace = Trace(rollout_id="r-1", task={"id": "t-1", "prompt": "6 x 7?", "answer": expected}, harness="chat", ok=ok)
    prompt = trace.commit_prompt([{"role": "user", "content": "6 x 7?"}])
    trace.commit_call(ModelCall(started_at=1, ended_at=2), {"role": "assistant", "content": answer}, prompt)
    trace.spans = [Span("agent", 1, 2), Span("scoring", 2, 3)]
    for name, value in fields.items():
        setattr(trace, name, value)
    return trace


def saved(trace: Trace) -> TraceSaved:
    """As a rollout records it."""
    data = base64.b64encode(pack(trace)).decode("ascii")
    return TraceSaved(attempt=0, version=trace.version, size_bytes=len(dumps(trace)), data=data)


def run_rollout(
    writer: make.Writing,
    rollout_id: str,
    *events: Event,
    reward: float | None = 0.25,
    admission: cmd.Admit | None = None,
) -> None:
    """One rollout from its admission to its end, with what it recorded."""
    writer.batch(make.scheduler(), admission or make.admit(rollout_id))
    writer.batch(make.claim())
    told = (*events, RewardRecorded(attempt=0, name="right", value=reward))
    writer.batch(make.record(*told, rollout_id=rollout_id))
    writer.batch(make.finish(rollout_id))
