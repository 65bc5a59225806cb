"""Operators' long reads: so many at once, and who waits too long for a turn is told to come back."""

from __future__ import annotations

import contextlib

import pytest

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres import reads as reads_module
from rollbook.ledger.postgres.reads import PostgresReads
from rollbook.ledger.refusals import LedgerUnavailable
from tests.support.ledger import admit


async def test_read_that_gets_no_turn_is_refused_and_the_next_one_is_not(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads_module, "TURN_LIMIT_SEC", 0.01)
    await ledger.submit(admit("r-1"))
    assert len(await ledger.reader.events_page()) == 1
    reads = ledger.reader._reads
    assert isinstance(reads, PostgresReads)
    async with contextlib.AsyncExitStack() as others:
        for _ in range(reads_module.LONG_READS):
            await others.enter_async_context(reads._long.connection())
        with pytest.raises(LedgerUnavailable, match="try again later"):
            await ledger.reader.events_page()
        assert await ledger.reader.state("r-1") is not None, "short reads have connections of their own"
    assert len(await ledger.reader.events_page()) == 1
