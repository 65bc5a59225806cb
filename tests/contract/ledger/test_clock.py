"""Whose clock judges leases and dates events, as each database declares it."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from rollbook.ledger.database import database_of
from rollbook.ledger.ledger import Ledger
from tests.support.ledger import LEASE_US, SECOND_US, admit, poll, rows

TEN_MINUTES_US = 600 * SECOND_US
NEAR_US = 100 * SECOND_US
"""More than a test takes, less than the clocks are apart."""


@pytest.mark.parametrize("wrong_us", [TEN_MINUTES_US, -TEN_MINUTES_US], ids=["ahead", "behind"])
async def test_process_with_a_wrong_host_clock(
    database_url: str, migrated_url: sa.URL, monkeypatch: pytest.MonkeyPatch, wrong_us: int
) -> None:
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + wrong_us * 1_000)
    ledger = await Ledger.open(database_url)
    state = await ledger.submit(admit("r-1"))
    await ledger.submit(poll("r-1"))
    told, skew = ledger.clock(), ledger.skew_us()
    await ledger.close()
    many_hosts = database_of(migrated_url).capabilities.many_hosts
    off = 0 if many_hosts else wrong_us
    now = true_ns() // 1_000
    for time_us in (told, state.admitted_at, *(at for (at,) in rows(database_url, "SELECT recorded_at FROM events"))):
        assert abs(time_us - now - off) < NEAR_US
    assert abs(skew - (off - wrong_us)) < NEAR_US
    assert state.lease_expires_at == state.admitted_at + LEASE_US


async def test_host_clock_that_is_set_meanwhile(
    database_url: str, migrated_url: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await Ledger.open(database_url)
    before = ledger.clock()
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + TEN_MINUTES_US * 1_000)
    moved = ledger.clock() - before > NEAR_US
    await ledger.close()
    assert moved != database_of(migrated_url).capabilities.many_hosts
