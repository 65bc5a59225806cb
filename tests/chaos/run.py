"""One chaos run: a server, a fleet, a trainer with many rollouts, a follower, and disorder all the time."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from rollbook.cli.demo.endpoint import ChatEndpoint
from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from rollbook_client import RolloutClient, RolloutResultResponse
from tests.chaos import checks
from tests.chaos.balancer import balancing
from tests.chaos.disorder import Disorder
from tests.chaos.fleet import Fleet
from tests.chaos.following import positions_read
from tests.chaos.trainer import Trainer
from tests.support.postgres import PrivateServer, private_server
from tests.support.processes import Deployment, until

ROOT = Path(__file__).parents[2]
BEGINNING = 0.8
"""In which part of the disorder rollouts begin."""
LAST_RESULTS_SEC = 60.0
"""How long the last results may take once there is peace."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does."""

    seed: int
    rollouts: int
    seconds: float
    """How long the disorder goes on; the rollouts begin spread over this time."""


class Report(msgspec.Struct, frozen=True):
    """What there was in a run that went well."""

    rollouts: int
    attempts: int
    events: int
    actions: int
    repeated: int

    def __str__(self) -> str:
        return (
            f"{self.rollouts} rollouts in {self.attempts} attempts and {self.events} events, through {self.actions}"
            f" actions; the trainer came back {self.repeated} times. All is as it should be."
        )


class Chronicle:
    """What was done, and when."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._began = time.monotonic()
        self.lines: list[str] = []
        self.results = 0

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:8.2f} s {self.results:5d} results  {text}"
        self.lines.append(line)
        self._show(line)


async def run_chaos(plan: Plan, folder: Path, *, show: Callable[[str], None] = lambda _line: None) -> Report:
    """Carry a plan out; the logs of all processes are in the folder afterwards.

    Raises:
        AssertionError, TimeoutError: something does not hold. Its notes tell the seed and all that was done.
    """
    chronicle = Chronicle(show)
    try:
        with private_server() as server:
            upgrade(parse_url(server.url()))
            deployment = Deployment(folder, server.url())
            try:
                return await _run(plan, deployment, server, chronicle)
            finally:
                deployment.close()
    except BaseException as error:
        error.add_note(f"seed {plan.seed}, {plan.rollouts} rollouts, {plan.seconds:g} s; what was done:")
        for line in chronicle.lines:
            error.add_note(line)
        raise


async def _run(plan: Plan, deployment: Deployment, server: PrivateServer, chronicle: Chronicle) -> Report:
    record = deployment.folder / "positions"
    async with _following(deployment, record):
        fleet = Fleet(deployment)
        try:
            await fleet.at_work()
            chronicle.say("all processes are at work")
            results, repeated = await _under_disorder(plan, fleet, server, chronicle)
            chronicle.say("all results are there")
            codes = await fleet.end()
        finally:
            await fleet.abandon()
        assert set(codes.values()) == {0}, f"processes did not end in order: {codes}"
        assert deployment.pids() == [], "processes were left behind"
        last = deployment.number("SELECT position FROM ledger_head")
        await until(lambda: (positions_read(record) or [0])[-1] == last, what="the follower at the end of the ledger")
    assert {result.status for result in results} == {"success"}
    assert all(result.sample is not None and result.sample.reward == 1.0 for result in results)
    checks.check_rollouts(deployment, [result.rollout_id for result in results])
    attempts = checks.check_attempts(deployment.database_url)
    events = checks.check_feed(deployment.database_url, record)
    deployment.close()  # of its own connection, through which it looked at the ledger
    checks.check_no_session_is_left(deployment)
    return Report(len(results), attempts, events, len(chronicle.lines), repeated)


async def _under_disorder(
    plan: Plan, fleet: Fleet, server: PrivateServer, chronicle: Chronicle
) -> tuple[list[RolloutResultResponse], int]:
    endpoint = ChatEndpoint(seed=plan.seed)
    async with endpoint.serving(), balancing(fleet.ports) as balancer, RolloutClient(url=balancer.url) as client:
        trainer = Trainer(client, endpoint)

        async def one(number: int) -> RolloutResultResponse:
            await asyncio.sleep(plan.seconds * BEGINNING * number / plan.rollouts)
            result = await trainer.roll_out(f"r-{number}")
            chronicle.results += 1
            return result

        async with asyncio.TaskGroup() as group:
            rollouts = [group.create_task(one(number)) for number in range(plan.rollouts)]
            await asyncio.wait(rollouts, return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(plan.seconds):
                    await Disorder(fleet, server, seed=plan.seed, say=chronicle.say).go_on()
            await fleet.calm()
            chronicle.say("peace")
            await asyncio.wait(rollouts, timeout=LAST_RESULTS_SEC)
            late = [f"r-{number}" for number, rollout in enumerate(rollouts) if not rollout.done()]
            assert not late, f"no result of {', '.join(late)}"
        return [rollout.result() for rollout in rollouts], trainer.repeated


@contextlib.asynccontextmanager
async def _following(deployment: Deployment, record: Path) -> AsyncIterator[None]:
    """A follower for the block, from an empty ledger on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.following", deployment.database_url, str(record)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"following\n"
        yield
        process.stdin.close()
        assert await asyncio.to_thread(process.wait, LAST_RESULTS_SEC) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
