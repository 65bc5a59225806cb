"""A task is run by `rollbook serve` and scored once more by `rollbook rescore`, from the trace that it left."""

from __future__ import annotations

import textwrap

from rollbook.traces.storage import loads
from tests.support.commands import Outcome, environment, outcome, start
from tests.support.documents import programs
from tests.support.model_server import ModelServer, Say, in_thread
from tests.support.processes import Deployment

ENTRY = """
    from rollbook.tasks.backend import TaskBackend
    from rollbook.tasks.data import TaskData
    from rollbook.tasks.harnesses.chat import ChatHarness
    from rollbook.tasks.hooks import metric, reward
    from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
    from rollbook.tasks.task import Task
    from rollbook.traces.sample import sample_messages
    from rollbook.traces.trace import Trace

    class Sums(Task[TaskData]):
        @reward
        def right(self, trace: Trace, data: TaskData) -> float:
            return float(sample_messages(trace)[-1]["content"] == data.label)

    class Lenient(Sums):
        @reward
        def right(self, trace: Trace, data: TaskData) -> float:
            return float(data.label in sample_messages(trace)[-1]["content"])

        @metric
        def turns(self, trace: Trace) -> int:
            return trace.num_turns

    backend = TaskBackend(task=Sums, harness=ChatHarness(), runtime=SubprocessRuntime)
"""


async def test_a_new_way_of_scoring_counts_from_then_on(deployment: Deployment) -> None:
    (deployment.folder / "sums.py").write_text(textwrap.dedent(ENTRY))
    with in_thread(ModelServer(Say("It is 42."))) as model:
        where = ("--database-url", deployment.database_url, "--port", str(deployment.port))
        deployment.start("serve", "-m", "rollbook", "serve", "sums.py:backend", *where)
        await deployment.answering()
        async with deployment.client() as client:
            result = await client.run_rollout(
                [{"role": "user", "content": "6 * 7"}], model.url, "r-1", llm_api_key="sk-own", label="42"
            )
        assert (result.status, result.sample and result.sample.reward) == ("success", 0.0)
        variables = environment(ROLLBOOK_DATABASE_URL=deployment.database_url)
        told = outcome(
            start("rescore", "r-1", "--task", "sums:Lenient", "--json", cwd=deployment.folder, env=variables)
        )
        assert (told.code, told.err) == (0, "")
        assert (told.json["was"], told.json["reward"], told.json["metrics"]) == (0.0, 1.0, {"turns": 1.0})
        assert len(model.received) == 1
    (report,) = deployment.rows("SELECT reward, rewards, metrics, scoring, model_calls FROM rollout_reports")
    assert tuple(report) == (1.0, '{"right": 1.0}', '{"turns": 1.0}', 1, 1)
    async with deployment.client() as client:
        assert (await client.health())["lifecycle"]["active_rollouts"] == 0
    deployment.check_ledger()


LATER = """
    from rollbook.tasks import ChatHarness, Judge, Runtime, SubprocessRuntime, TaskBackend, TaskData, Trace, reward

    class Made(Total):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            await runtime.write("total.txt", b"42")

    class Insisting(Made):
        @reward
        async def right(self, runtime: Runtime) -> float:
            return float((await runtime.run("cat total.txt")).stdout == b"42")

    class Ruined(Made):
        judges = (Judge("clear", "grader-1", rubric="Is it clear?", base_url_env="NO_JUDGE_IS_HERE"),)

        @reward
        def right(self, trace: Trace) -> float:
            return trace.info["totl"]

    backend = TaskBackend(task=Made, harness=ChatHarness(), runtime=SubprocessRuntime)
"""


async def test_the_documented_task_is_scored_again_and_a_broken_one_takes_nothing_away(deployment: Deployment) -> None:
    (documented,) = programs("docs/rescoring.md")
    (deployment.folder / "totals.py").write_text(documented + textwrap.dedent(LATER))
    with in_thread(ModelServer(Say("It is written."))) as model:
        deployment.serve(entrypoint=deployment.folder / "totals.py:backend")
        await deployment.answering()
        async with deployment.client() as client:
            result = await client.run_rollout([{"role": "user", "content": "6 * 7"}], model.url, "r-1", label="42")
        assert (result.status, result.sample and result.sample.reward) == ("success", 1.0), result.err_message
    variables = environment(ROLLBOOK_DATABASE_URL=deployment.database_url)

    def rollbook(*arguments: str) -> Outcome:
        return outcome(start(*arguments, cwd=deployment.folder, env=variables))

    def front() -> tuple[object, ...]:
        (row,) = deployment.rows("SELECT scoring, reward, rewards FROM rollout_reports")
        return tuple(row)

    again = rollbook("rescore", "r-1", "--task", "totals:Made", "--json")
    assert (again.code, again.json["rewards"], again.json["scoring"]) == (0, {"right": 1.0}, 1)
    insisting = rollbook("rescore", "r-1", "--task", "totals:Insisting")
    assert insisting.code == 2
    assert "@reward Insisting.right cannot do without one" in insisting.error_line
    ruined = rollbook("rescore", "--prefix", "r-", "--task", "totals:Ruined")
    assert ruined.code == 1
    assert "scores did not come back from @reward Ruined.right (1), the judge clear (1)" in ruined.error_line
    assert front() == (1, 1.0, '{"right": 1.0}')
    assert rollbook("rescore", "r-1", "--task", "totals:Ruined", "--keep-partial").code == 1
    assert front() == (2, None, '{"right": null, "clear": null}')
    assert rollbook("rescore", "r-1", "--restore", "1").code == 0
    assert front() == (3, 1.0, '{"right": 1.0}')
    shown = rollbook("trace", "r-1")
    assert (shown.code, shown.err) == (0, "")
    assert "scored since    reward 1 in scoring 3 by cli:" in shown.out
    whole = loads(rollbook("trace", "r-1", "--json").out)
    assert (whole.info, whole.rewards) == ({"total": "42"}, {"right": 1.0})
    deployment.check_ledger()
