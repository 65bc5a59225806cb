"""An API that starts after another one crashed: leases are not judged over the time in which nobody could poll."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.server.member import ApiMember
from tests.support.ledger import SECOND_US, admit, api, poll
from tests.support.scheduling import types
from tests.support.stores import elsewhere

SHORT_SEC, LONG_SEC = 8, 120


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    opened = await Ledger.open(database_url)
    yield opened
    await opened.close()


async def start_after_a_crash(ledger: Ledger, *, lease_sec: int, ago_sec: float) -> ApiMember:
    """An API, started while the beat of the last one is so old."""
    elsewhere(ledger, api("crashed"), admit("r", lease_timeout_us=lease_sec * SECOND_US), ago_sec=ago_sec)
    member = ApiMember(ledger, lease_timeout_sec=lease_sec, accepting=lambda: True)
    await member.start()
    return member


async def test_short_lease_outlives_a_silence_that_others_would_not_notice(ledger: Ledger) -> None:
    member = await start_after_a_crash(ledger, lease_sec=SHORT_SEC, ago_sec=10.0)
    await ledger.submit(cmd.Beat(member.member_id))
    assert (await ledger.submit(poll("r"))).status == "queued"
    assert await types(ledger, "r") == ["rollout_admitted", "lease_extended", "lease_renewed"]
    await member.stop()


async def test_long_leases_go_on_over_a_silence_that_is_short_for_them(ledger: Ledger) -> None:
    member = await start_after_a_crash(ledger, lease_sec=LONG_SEC, ago_sec=10.0)
    assert await types(ledger, "r") == ["rollout_admitted"]
    await member.stop()
