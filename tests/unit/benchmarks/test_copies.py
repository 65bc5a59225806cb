"""Long ledgers are made of copies, as many as were asked for, and the ledger goes on after them."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from benchmarks import copies, raw_postgres, raw_sqlite, work
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import POSTGRES, parse_url
from tests.support.postgres import fresh_database

ROLLOUTS, TIMES = 3, 4
SECRET_KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A migrated, empty ledger on each database."""
    monkeypatch.setenv("ROLLBOOK_SECRET_KEY", SECRET_KEY)
    if request.param == POSTGRES:
        with fresh_database() as made:
            upgrade(parse_url(made))
            yield made
    else:
        made = f"sqlite:///{tmp_path / 'ledger.sqlite3'}"
        upgrade(parse_url(made))
        yield made


def _multiply(url: str) -> None:
    if parse_url(url).get_backend_name() == POSTGRES:
        asyncio.run(copies.multiply_postgres(url, TIMES))
    else:
        copies.multiply_sqlite(Path(make_url(url).database or ""), TIMES)


async def _look(url: str) -> tuple[int, int, int, int]:
    """Rollouts, events, attempts, and the number that the next rollout gets."""
    ledger = await Ledger.open(url)
    try:
        admitted = await ledger.submit(work.admit("next"))
        (row,) = await ledger.reader.query(
            "SELECT (SELECT count(*) FROM rollouts WHERE finished_at IS NOT NULL), (SELECT count(*) FROM events),"
            " (SELECT count(*) FROM attempt_starts)"
        )
        return row[0], row[1], row[2], admitted.number
    finally:
        await ledger.close()


def test_copies_are_finished_rollouts_with_their_histories(url: str) -> None:
    asyncio.run(work.fill(url, ROLLOUTS))
    _multiply(url)
    whole = ROLLOUTS * (TIMES + 1)
    rollouts, events, attempts, following = asyncio.run(_look(url))
    assert (rollouts, attempts, following) == (whole, whole, whole + 1)
    assert (events - 1) % whole == 0


def test_raw_write_set_is_measured_from_the_ledgers_own_rows(url: str) -> None:
    asyncio.run(work.fill(url, 8))
    if parse_url(url).get_backend_name() == POSTGRES:
        rate = asyncio.run(raw_postgres.submits_per_sec(url, 4, 0.01))
    else:
        folder = Path(make_url(url).database or "").parent
        rate = raw_sqlite.submits_per_sec(folder, 4, 0.01)
        with closing(sqlite3.connect(folder / "raw.sqlite3")) as db:
            assert db.execute("SELECT count(*) FROM rollouts").fetchone()[0] in (4, 8)
    assert rate > 0
