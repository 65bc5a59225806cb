"""Replay: how fast the whole ledger is folded anew from its events, and compared with the live rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rollbook.ledger.replay import replay, verify_replay

from . import work
from .machine import Patience
from .places import Place
from .report import Cell, Floor, Report, Table, median

SUBJECT = "the ledger folded anew from its events"
ROLLOUTS = 20_000


def run(place: Place, *, quick: bool) -> Report:
    """Fill a ledger, then time both passes over it."""
    rounds, rollouts = (1, ROLLOUTS // 5) if quick else (3, ROLLOUTS)
    patience = Patience()
    with place.ledger() as url:
        asyncio.run(work.fill(url, rollouts))
        events = replay(url).head.events
        patience.wait()
        folded = median([_timed(lambda: replay(url)) for _ in range(rounds)])
        patience.wait()
        verified = median([_timed(lambda: verify_replay(url)) for _ in range(rounds)])
    rows: list[tuple[Cell, ...]] = [
        ("replay", events, folded, events / folded),
        ("replay --verify", events, verified, events / verified),
    ]
    return Report(
        "replay",
        SUBJECT,
        (Table(f"{rollouts:,} finished rollouts", ("pass", "events", "seconds", "events/s"), rows),),
        (Floor("replay --verify", events / verified, least=place.least_replayed, unit=" events/s"),),
        patience.notes,
    )


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
