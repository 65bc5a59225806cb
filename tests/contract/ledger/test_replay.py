"""Replay: the live rows are what the events add up to, and where they are not it says so."""

import asyncio
import contextlib
import random
import re

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.replay import Difference, replay, verify_replay
from rollbook.ledger.schema import SchemaError
from rollbook.ledger.statements import STATE_COLUMNS
from rollbook.ledger.transaction import Head, QueueCount
from rollbook_client import events as ev
from rollbook_client.events import StageSpan
from rollbook_projections.tables import HISTORY_TABLES
from tests.support.ledger import (
    CALLED,
    Writing,
    admit,
    api,
    cancel,
    claim,
    close,
    enter,
    finish,
    poll,
    record,
    rescore,
    rows,
    scheduler,
)
from tests.support.tampering import alter


@pytest.fixture
def filled(writer: Writing, database_url: str) -> str:
    """Rows in every table: 1 succeeded after a loss, 2 was cancelled, 3 runs, 4 lost its lease, 5 waits."""
    writer.batch(scheduler(), *(admit(f"r-{i}") for i in range(1, 5)))
    writer.do(claim(limit=1))
    writer.do(close("r-1"))
    writer.do(claim(limit=1))
    writer.do(enter("r-1", attempt=2))
    writer.clock.forward(1)
    recorded = (
        CALLED,
        ev.ExchangeStopped(attempt=0, condition="max_turns"),
        ev.MessageRewritten(attempt=0, hook="shorten", side="request", call=1),
        ev.TraceSaved(attempt=0, version=1, size_bytes=2, data="eJyrBQABdQD5"),
    )
    writer.do(record(*recorded, attempt=2))
    spans = (StageSpan("agent", 1, 2), StageSpan("grading", 2, 3))
    writer.do(finish("r-1", attempt=2, spans=spans, metrics=(cmd.Score("m", None),)))
    writer.do(rescore(scores=(cmd.Score("exact", 0.5),)))
    writer.do(cancel("r-2"))
    writer.do(claim(limit=1))
    writer.do(api())
    writer.clock.forward(60)
    writer.batch(cmd.Beat("a-1"), poll("r-3"))
    writer.clock.forward(60)
    writer.do(cmd.Beat("a-1"))
    writer.do(cmd.ExpireLeases())
    writer.batch(admit("r-5", queue="other"), poll("r-5"))
    return database_url


def test_totals_are_those_of_the_ledger(filled: str) -> None:
    found = replay(filled)
    ((position, number, events),) = rows(filled, "SELECT position, number, events FROM ledger_head")
    assert found.head == Head(position, number, events)
    assert found.statuses == {"success": 1, "cancelled": 1, "queued": 2, "failure": 1}
    assert found.queues == {"default": QueueCount(0, 1), "other": QueueCount(1, 0)}


def test_every_table_has_rows_to_compare(filled: str) -> None:
    for table in HISTORY_TABLES:
        assert rows(filled, f"SELECT count(*) FROM {table.name}") != [(0,)], table.name


def test_whole_ledger_has_no_difference(filled: str) -> None:
    assert verify_replay(filled) == []


def test_empty_ledger_has_no_difference(writer: Writing, database_url: str) -> None:
    assert verify_replay(database_url) == []
    assert replay(database_url).head == Head(0, 0, 0)


COPY = ", ".join(["99", "'r-99'", *STATE_COLUMNS[2:]])
DAMAGES = {
    "UPDATE rollouts SET status = 'failure' WHERE number = 1": (
        r"rollouts\[number 1\]\.status: expected 'success', found 'failure'"
    ),
    "UPDATE rollouts SET lease_expires_at = 5 WHERE number = 3": (
        r"rollouts\[number 3\]\.lease_expires_at: expected \d{16}, found 5"
    ),
    "UPDATE rollouts SET rollout_id = 'r-9' WHERE number = 5": (
        r"rollouts\[number 5\]\.rollout_id: expected 'r-5', found 'r-9'"
    ),
    "UPDATE rollouts SET head = substr(head, 1, 1) WHERE number = 5": (
        r"rollouts\[number 5\]\.head: expected \w{64}, found \w{2}"
    ),
    "DELETE FROM rollouts WHERE number = 2": r"rollouts\[number 2\]\.\*: expected a row, found no row",
    f"INSERT INTO rollouts SELECT {COPY} FROM rollouts WHERE number = 2": (
        r"rollouts\[number 99\]\.\*: expected no row, found a row"
    ),
    "UPDATE queue_counts SET running = 7 WHERE queue = 'default'": (
        r"queue_counts\[default\]\.running: expected 1, found 7"
    ),
    "DELETE FROM queue_counts WHERE queue = 'other'": r"queue_counts\[other\]\.queued: expected 1, found 0",
    "INSERT INTO queue_counts VALUES ('third', 2, 0)": r"queue_counts\[third\]\.queued: expected 0, found 2",
    "UPDATE ledger_head SET events = 3": r"ledger_head\[1\]\.events: expected \d+, found 3",
    "UPDATE ledger_head SET position = 99": r"ledger_head\[1\]\.position: expected \d+, found 99",
    "UPDATE ledger_head SET number = 99": r"ledger_head\[1\]\.number: expected 5, found 99",
    "DELETE FROM ledger_head": r"ledger_head\[1\]\.\*: expected a row, found no row",
    "UPDATE admissions SET label = 'x' WHERE number = 2": r"admissions\[.*\]\.label: expected '6', found 'x'",
    "UPDATE scores SET value = 0 WHERE kind = 'metric'": r"scores\[.*\]\.value: expected None, found 0\.0",
    "UPDATE scores SET scoring = 0 WHERE scoring = 1": r"scores\[.*\]\.scoring: expected 1, found 0",
    "UPDATE scorings SET reward = 1": r"scorings\[.*\]\.reward: expected 0\.5, found 1\.0",
    "UPDATE model_calls SET output_tokens = 1": r"model_calls\[.*\]\.output_tokens: expected 16, found 1",
    "DELETE FROM stops": r"stops\[.*\]\.\*: expected a row, found no row",
    "UPDATE rewrites SET hook = 'x'": r"rewrites\[.*\]\.hook: expected 'shorten', found 'x'",
    "UPDATE traces SET size_bytes = 3": r"traces\[.*\]\.size_bytes: expected 2, found 3",
    "UPDATE stage_spans SET stage = 'x' WHERE idx = 1": (
        r"stage_spans\[number 1, position \d+, idx 1\]\.stage: expected 'grading', found 'x'"
    ),
    "UPDATE outcomes SET status = 'success' WHERE number = 2": (
        r"outcomes\[.*\]\.status: expected 'cancelled', found 'success'"
    ),
    "DELETE FROM attempt_ends WHERE attempt = 1": r"attempt_ends\[.*\]\.\*: expected a row, found no row",
    "UPDATE attempt_starts SET at = 1 WHERE number = 3": r"attempt_starts\[.*\]\.at: expected \d{16}, found 1",
    "DELETE FROM phases": r"phases\[.*\]\.\*: expected a row, found no row",
    "UPDATE cancellations SET requested_by = 'me'": (r"cancellations\[.*\]\.requested_by: expected 'api', found 'me'"),
    "UPDATE lease_changes SET kind = 'x' WHERE kind = 'expired'": (
        r"lease_changes\[.*\]\.kind: expected 'expired', found 'x'"
    ),
    "INSERT INTO phases VALUES (1, 9999, 1, 1, 'grading')": (
        r"phases\[number 1, position 9999\]\.\*: expected no row, found a row"
    ),
    "INSERT INTO phases VALUES (77, 1, 1, 1, 'grading')": (
        r"phases\[number 77, position 1\]\.\*: expected no row, found a row"
    ),
    "INSERT INTO phases VALUES (-1, 1, 1, 1, 'grading')": (
        r"phases\[number -1, position 1\]\.\*: expected no row, found a row"
    ),
}


@pytest.mark.parametrize("statement", DAMAGES)
def test_difference_is_named(filled: str, statement: str) -> None:
    alter(filled, statement)
    (found,) = verify_replay(filled)
    assert re.fullmatch(DAMAGES[statement], str(found))


def test_first_twenty_differences_are_named(writer: Writing, database_url: str) -> None:
    writer.batch(*(admit(f"r-{i}") for i in range(3_000)))
    alter(database_url, "UPDATE rollouts SET status = 'x' WHERE number > 2000", "DELETE FROM admissions")
    found = verify_replay(database_url)
    assert len(found) == 20
    alter(database_url, "DELETE FROM rollouts")
    assert {difference.found for difference in verify_replay(database_url)} == {"no row"}


@pytest.mark.parametrize("share", [2, 3, 700, 2_999])
def test_missing_and_added_rows_do_not_shift_what_is_compared(writer: Writing, database_url: str, share: int) -> None:
    writer.batch(*(admit(f"r-{i}") for i in range(3_000)))
    alter(
        database_url,
        f"DELETE FROM admissions WHERE number = {share}",
        f"INSERT INTO admissions VALUES ({share + 1}, 1000000, 1, NULL, NULL)",
        f"UPDATE rollouts SET attempt = 9 WHERE number = {share}",
    )
    found = verify_replay(database_url)
    assert sorted((difference.table, difference.found) for difference in found) == [
        ("admissions", "a row"),
        ("admissions", "no row"),
        ("rollouts", 9),
    ]


def test_event_that_does_not_fold_is_named_and_the_others_are_still_compared(filled: str) -> None:
    alter(
        filled,
        "UPDATE events SET payload = '{\"broken' WHERE number = 2 AND seq = 2",
        "UPDATE rollouts SET attempt = 7 WHERE number = 3",
    )
    found = verify_replay(filled)
    assert [(difference.table, difference.column) for difference in found][:2] == [
        ("events", "*"),
        ("rollouts", "attempt"),
    ]
    assert found[0].key.startswith("rollout number 2, seq 2, position")
    assert {difference.table for difference in found[2:]} <= {"queue_counts"}
    with pytest.raises(LedgerUnavailable, match="audit verify"):
        replay(filled)


def test_missing_event_is_named(filled: str) -> None:
    alter(filled, "DELETE FROM events WHERE number = 1 AND seq = 3")
    assert "seq 4 follows 2" in str(verify_replay(filled)[0])


async def test_comparison_is_right_while_others_write(ledger: Ledger, database_url: str) -> None:
    chance = random.Random(5)
    await ledger.submit(scheduler())
    names = [f"r-{i}" for i in range(300)]
    await asyncio.gather(*(ledger.submit(admit(name)) for name in names))
    rounds = 0

    async def write() -> None:
        nonlocal rounds
        while True:
            await asyncio.gather(
                ledger.submit(claim(limit=2)), *(ledger.submit(poll(chance.choice(names))) for _ in range(8))
            )
            rounds += 1

    writing = asyncio.ensure_future(write())
    async with asyncio.timeout(60):
        for least in range(1, 11):
            # A machine may be slow: compare as often as it takes for writes to have come between.
            while rounds < least:
                assert await asyncio.to_thread(verify_replay, database_url) == []
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing


def test_where_no_ledger_is_the_command_is_named(empty_url: str) -> None:
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        verify_replay(empty_url)


def test_long_values_are_shown_shortened() -> None:
    shown = str(Difference("outcomes", "number 1, position 2", "err_message", "x" * 5_000, None))
    assert len(shown) < 400
    assert shown.endswith("found None")
