"""Operators' long reads: so many at once, and who waits too long for a turn is told to come back."""

from __future__ import annotations

import contextlib

import pytest

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.sqlite import engines
from rollbook.ledger.sqlite.reads import SqliteReads
from tests.support.ledger import admit


async def test_read_that_gets_no_turn_is_refused_and_the_next_one_is_not(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LONG_READ_WAIT_SEC", 0.01)
    await ledger.submit(admit("r-1"))
    assert len(await ledger.reader.events_page()) == 1
    reads = ledger.reader._reads
    assert isinstance(reads, SqliteReads) and reads._long is not None
    async with contextlib.AsyncExitStack() as others:
        for _ in range(engines.LONG_READS):
            await others.enter_async_context(reads._long.connect())
        with pytest.raises(LedgerUnavailable, match="try again later"):
            await ledger.reader.events_page()
    assert len(await ledger.reader.events_page()) == 1
