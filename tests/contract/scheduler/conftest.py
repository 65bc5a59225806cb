"""A ledger as an API guards it, a pool of runners that the test plays, and a scheduler over both."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollbook.ledger.ledger import Ledger
from rollbook.scheduler.scheduler import Scheduler
from tests.support.scheduling import LEASE_US, PlayedPool, settings


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    opened = await Ledger.open(database_url)
    opened.guard_leases(LEASE_US)
    yield opened
    await opened.close()


@pytest.fixture
def pool() -> PlayedPool:
    return PlayedPool(slots=2)


@pytest.fixture
async def scheduler(ledger: Ledger, pool: PlayedPool) -> AsyncIterator[Scheduler]:
    running = Scheduler(ledger, settings(ledger), pool, on_broken=pytest.fail)
    await running.start()
    yield running
    await running.stop()
