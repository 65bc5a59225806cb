"""A process that works on a ledger until it is killed, and prints what was acknowledged as it happens."""

import asyncio
import os
from itertools import count
from multiprocessing.connection import Connection

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import Refusal
from tests.support.ledger import admit, cancel, claim, close, enter, finish, poll, scheduler

TASKS = 16


async def one_life(ledger: Ledger, name: str, rollout_id: str, turn: int) -> None:
    """A rollout of this process's own queue, so that no other process claims it."""
    await ledger.submit(admit(rollout_id, queue=name))
    print("admitted", rollout_id, flush=True)
    for state in await ledger.submit(claim(name, queues=(name,), limit=2)):
        attempt = state.attempt
        try:
            await ledger.submit(enter(state.rollout_id, attempt=attempt, scheduler=name))
            await ledger.submit(poll(state.rollout_id))
            if turn % 7 == 0:
                await ledger.submit(cancel(state.rollout_id))
            if turn % 5 == 0:
                await ledger.submit(close(state.rollout_id, attempt=attempt, scheduler=name))
            else:
                await ledger.submit(finish(state.rollout_id, attempt=attempt, scheduler=name))
                print("finished", state.rollout_id, flush=True)
        except Refusal:
            print("refused", state.rollout_id, flush=True)


async def main(database_url: str, name: str) -> None:
    ledger = await Ledger.open(database_url)
    await ledger.submit(scheduler(name, queues=(name,)))
    turns = count()

    async def work() -> None:
        for turn in turns:
            await one_life(ledger, name, f"{name}-{turn}", turn)

    await asyncio.gather(*(work() for _ in range(TASKS)))


def run(database_url: str, name: str, told: Connection, environment: dict[str, str]) -> None:
    """Work under a name, which its scheduler and its rollouts' ids carry; what is printed goes to a pipe."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(told.fileno(), 1)
    asyncio.run(main(database_url, name))
