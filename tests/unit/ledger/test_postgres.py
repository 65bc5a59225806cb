"""What the driver's errors mean, and how parameters are marked."""

from __future__ import annotations

from itertools import islice

import asyncpg
import pytest
from asyncpg.exceptions import _base
from sqlalchemy.engine import make_url

from rollbook.ledger.postgres.connecting import (
    FIRST_PAUSE_SEC,
    LONGEST_PAUSE_SEC,
    connect,
    describe,
    is_outage,
    pauses,
    unavailable,
)
from rollbook.ledger.postgres.dialect import numbered

LATER = [
    ConnectionRefusedError(),
    ConnectionResetError(),
    FileNotFoundError("no such socket"),
    TimeoutError(),
    EOFError(),
    asyncpg.CannotConnectNowError("the database system is starting up"),
    asyncpg.TooManyConnectionsError("sorry, too many clients already"),
    asyncpg.AdminShutdownError("terminating connection"),
    asyncpg.CrashShutdownError("terminating connection"),
    asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    asyncpg.DiskFullError("could not extend file"),
    asyncpg.OutOfMemoryError("out of memory"),
    asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"),
    asyncpg.LockNotAvailableError("canceling statement due to lock timeout"),
    asyncpg.DeadlockDetectedError("deadlock detected"),
    asyncpg.SerializationError("could not serialize access"),
    asyncpg.IdleInTransactionSessionTimeoutError("terminating connection"),
    asyncpg.InvalidPasswordError("password authentication failed"),
    asyncpg.InvalidCatalogNameError("database does not exist"),
    asyncpg.UndefinedTableError("relation does not exist"),
    asyncpg.InterfaceError("connection is closed"),
    asyncpg.InternalClientError("unexpected end"),
]
NEVER = [
    asyncpg.UniqueViolationError("duplicate key"),
    asyncpg.NotNullViolationError("null value"),
    asyncpg.NumericValueOutOfRangeError("value out of range"),
    asyncpg.CharacterNotInRepertoireError("invalid byte sequence"),
    asyncpg.UntranslatableCharacterError("character has no equivalent"),
    asyncpg.ProgramLimitExceededError("index row size exceeds maximum"),
    _base.DataError("invalid input for query argument"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ValueError(),
    KeyError(),
    AssertionError(),
]


@pytest.mark.parametrize("error", LATER, ids=lambda error: type(error).__name__)
def test_what_may_work_later_is_an_outage(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize("error", NEVER, ids=lambda error: type(error).__name__)
def test_what_is_wrong_with_the_command_or_with_us_is_none(error: Exception) -> None:
    assert not is_outage(error)


def test_every_outage_has_words() -> None:
    for error in LATER:
        assert describe(error)
        assert str(unavailable(error, doing="written")).startswith("the ledger cannot be written now: ")


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("SELECT 1", "SELECT 1"),
        ("a = ?", "a = $1"),
        ("a = ? AND b IN (?, ?)", "a = $1 AND b IN ($2, $3)"),
        (", ".join("?" * 11), ", ".join(f"${number}" for number in range(1, 12))),
    ],
)
def test_marks_are_numbered_in_their_order(text: str, marked: str) -> None:
    assert numbered(text) == marked


def test_those_who_lost_their_connections_together_do_not_come_back_together() -> None:
    others = [list(islice(pauses(), 12)) for _ in range(20)]
    for together in zip(*others, strict=True):
        assert len(set(together)) == len(others)
    for waits in others:
        assert FIRST_PAUSE_SEC / 2 <= waits[0] < FIRST_PAUSE_SEC * 2
        assert LONGEST_PAUSE_SEC / 2 <= waits[-1] < LONGEST_PAUSE_SEC * 2


async def test_connection_that_cannot_be_tried_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "no such mode")
    with pytest.raises(ConnectionError, match="sslmode") as caught:
        await connect(make_url("postgresql://rollbook@127.0.0.1:1/rollbook"))
    assert is_outage(caught.value)
