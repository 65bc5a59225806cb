"""A task is run by `rollbook serve` and scored once more by `rollbook rescore`, from the trace that it left."""

from __future__ import annotations

import textwrap

from tests.support.commands import environment, outcome, start
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
