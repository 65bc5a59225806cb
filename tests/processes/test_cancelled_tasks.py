"""Tasks that are cancelled in each of their stages, in a real deployment: one end in the ledger, nothing left."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

from tests.support.model_server import Hang, ModelServer, Say, in_thread
from tests.support.processes import Deployment, until

STAGES = ("setup", "agent", "finalize", "scoring")

TASK = """
    from pathlib import Path

    from rollbook.tasks.backend import TaskBackend
    from rollbook.tasks.harnesses.program import ProgramHarness
    from rollbook.tasks.hooks import reward
    from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
    from rollbook.tasks.task import Task

    HERE = Path(__file__).parent

    class Waits(Task):
        async def wait_in(self, stage, data, runtime):
            if data.metadata["waits"] == stage:
                # With a grandchild, which outlives its parent where only that is ended.
                await runtime.run(f"sleep 9999 & touch {HERE}/{stage}.there; wait")

        async def setup(self, data, runtime):
            await self.wait_in("setup", data, runtime)

        async def finalize(self, data, runtime, trace):
            await self.wait_in("finalize", data, runtime)

        @reward
        async def right(self, data, runtime) -> float:
            await self.wait_in("scoring", data, runtime)
            return 1.0

    AGENT = '''
    import json, os, urllib.request
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"messages": json.load(open(os.environ["ROLLBOOK_MESSAGES"]))}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).read()
    '''

    def backend():
        import sys, textwrap

        return TaskBackend(
            task=Waits,
            harness=ProgramHarness([sys.executable, "-c", textwrap.dedent(AGENT)]),
            runtime=lambda: SubprocessRuntime(parent=HERE / "runtimes"),
        )
"""


def _is_there(path: Path) -> bool:
    return path.exists()


async def test_task_that_is_cancelled_in_any_stage_has_one_end_and_leaves_nothing(deployment: Deployment) -> None:
    entry = deployment.folder / "waiting.py"
    entry.write_text(textwrap.dedent(TASK))
    with in_thread(ModelServer(default=Say("42"))) as model:
        deployment.serve(entrypoint=Path(f"{entry}:backend"))
        await deployment.answering()
        async with deployment.client() as client:
            for stage in STAGES:
                model.default = Hang() if stage == "agent" else Say("42")
                asked = len(model.received)
                running = asyncio.ensure_future(
                    client.run_rollout(
                        [{"role": "user", "content": "6 * 7"}], model.url, f"in-{stage}", metadata={"waits": stage}
                    )
                )
                if stage == "agent":
                    await until(lambda: len(model.received) > asked, what="a call of the model")  # noqa: B023
                else:
                    there = deployment.folder / f"{stage}.there"
                    await until(lambda: _is_there(there), what=f"the {stage} of a task")  # noqa: B023
                await client.cancel_rollout(f"in-{stage}")
                result = await running
                assert (result.status, result.err_category, result.sample) == ("cancelled", None, None)
                assert [pid for pid in deployment.pids() if _runs(pid, b"sleep") or _runs(pid, b"OPENAI")] == []
                assert list((deployment.folder / "runtimes").iterdir()) == []
    for number, stage in enumerate(STAGES, start=1):
        query = " FROM {} t JOIN rollouts r ON r.number = t.number WHERE r.rollout_id = ?"
        spans = deployment.rows(f"SELECT t.stage{query.format('stage_spans')} ORDER BY t.position", f"in-{stage}")
        begun = ["boot", *STAGES[:number]]
        assert [name for (name,) in spans if name in ("boot", *STAGES)] == begun
        assert deployment.number(f"SELECT count(*){query.format('traces')}", f"in-{stage}") == 1
        scores = deployment.number(f"SELECT count(*){query.format('scores')}", f"in-{stage}")
        assert scores == 0, "a rollout that was cancelled has a reward"
    deployment.check_ledger()


def _runs(pid: int, word: bytes) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
