"""A trainer that wrote its admissions down can die: another process attaches to them and gets every result."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rollbook_client import RolloutStatus
from tests.support.processes import CHAT_URL, Deployment, until

ROLLOUTS = 50
TRAINER = """
import asyncio, sys
from pathlib import Path
from rollbook_client import RolloutClient

async def main(url, chat_url, count, gate, folder):
    async with RolloutClient(url=url) as client:
        handles = [
            await client.run_rollout_async([], chat_url, f"r-{number}", label=str(number),
                                           metadata={"until": gate, "text": str(number)})
            for number in range(int(count))
        ]
        for number, handle in enumerate(handles):
            Path(folder, f"{number}.saved").write_bytes(handle.save())
        Path(folder, "all.saved").touch()
        await asyncio.gather(*handles)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_another_process_gets_every_result_of_a_killed_trainer(deployment: Deployment, tmp_path: Path) -> None:
    deployment.api()
    deployment.scheduler(max_concurrent=ROLLOUTS)
    await deployment.answering()
    gate = tmp_path / "gate"
    trainer = deployment.start(
        "trainer", "-c", TRAINER, deployment.url, CHAT_URL, str(ROLLOUTS), str(gate), str(tmp_path)
    )
    await until((tmp_path / "all.saved").exists, what="the trainer's notes")
    trainer.kill()
    saved = [(tmp_path / f"{number}.saved").read_bytes() for number in range(ROLLOUTS)]

    async with deployment.client() as client:
        handles = [client.attach(each) for each in saved]
        running = await asyncio.gather(*(handle.wait_for_running() for handle in handles))
        assert set(running) == {RolloutStatus.RUNNING}
        gate.touch()
        outcomes = await asyncio.gather(*handles)

    assert [outcome.sample and outcome.sample.messages[-1]["content"] for outcome in outcomes] == [
        str(number) for number in range(ROLLOUTS)
    ]
    assert {outcome.sample.reward for outcome in outcomes if outcome.sample is not None} == {1.0}
    deployment.check_ledger()
