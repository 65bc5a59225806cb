"""Two agents that are programs, in one borrowed runtime: they talk by turns, and see what the other has left there."""

from __future__ import annotations

from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward
from rollbook.tasks.interaction import alternate
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import Stage
from tests.contract.tasks.test_harnesses import program
from tests.support.model_server import ModelServer, Received, Say

NOTES = """
with open("notes", "a") as notes:
    print(ask(), file=notes)
"""


class Noted(Task[TaskData]):
    """Counts what both have written."""

    @reward
    async def lines(self, runtime: Runtime) -> float:
        return float(len((await runtime.read("notes")).splitlines()))


def _said(trace: Trace) -> list[str]:
    branch = trace.final_branch
    assert branch is not None
    return [str(message["content"]) for message in branch.messages]


async def test_programs_alternate_in_a_runtime_that_outlives_both(stage: Stage) -> None:
    def answer(request: Received) -> Say:
        return Say(f"after {len(request.json['messages'])}")

    lent = stage.runtime()
    await lent.start()
    async with ModelServer(default=answer) as model:
        one, other = (
            stage.rollout(
                model,
                program(NOTES, resumes=True),
                task=Noted(),
                data=TaskData(id=name, system_prompt=name),
                runtime=lent,
                user=True,
                limits=RolloutLimits(max_turns=2),
            )
            for name in ("one", "other")
        )
        assert await one.open()
        assert await other.open()
        await alternate(one, other, opening="begin")
        first, second = await one.close(), await other.close()
    assert _said(first) == ["one", "begin", "after 2", "after 2", "after 4"]
    assert _said(second) == ["other", "after 2", "after 2", "after 4", "after 4"]
    assert (first.stop_condition, second.stop_condition) == ("max_turns", None)
    assert first.ok
    assert second.ok
    assert len(first.branches) == len(second.branches) == 1
    assert first.rewards == second.rewards == {"lines": 4.0}
    assert not lent.stopped
    assert (await lent.read("notes")).decode().split("\n") == ["after 2", "after 2", "after 4", "after 4", ""]
    await lent.stop()
    assert stage.left_behind == []
