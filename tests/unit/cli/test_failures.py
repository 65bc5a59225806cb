"""Every error becomes one line that says what to do next."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa

from rollbook.cli import missing_extra
from rollbook.cli.failures import CommandError, describe
from rollbook.ledger.codec import CodecError
from rollbook.ledger.postgres.connecting import unavailable
from rollbook.ledger.refusals import LedgerUnavailable, QueueTaken
from rollbook.ledger.schema import SchemaError
from rollbook.ledger.secrets import SecretKeyError
from rollbook.ledger.urls import DatabaseUrlError


@pytest.mark.parametrize(
    "error",
    [
        CommandError("it failed; do this"),
        DatabaseUrlError("it failed; do this"),
        LedgerUnavailable("it failed; do this"),
        SchemaError("it failed; do this"),
        SecretKeyError("it failed; do this"),
    ],
)
def test_errors_that_say_what_to_do_are_told_as_they_are(error: Exception) -> None:
    assert describe(error) == "it failed; do this"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (LedgerUnavailable("disk is full"), "disk is full; check that the disk has room"),
        (
            unavailable(ConnectionError("gone"), doing="read"),
            "gone; see what `rollbook doctor` says of its database, then",
        ),
        (QueueTaken("q", "flow.py"), "choose another --queue"),
        (CodecError("does not read"), "`rollbook audit verify`"),
        (sqlite3.DatabaseError("malformed"), "malformed; check the file with `rollbook audit verify`"),
        (sa.exc.OperationalError("SELECT 1", {}, sqlite3.OperationalError("odd")), "cannot be read: odd; check"),
        (PermissionError(13, "Permission denied", "/x"), "'/x'; check the path and its permissions"),
        (ModuleNotFoundError("no litestar", name="litestar"), 'pip install "rollbook[server]"'),
        (ModuleNotFoundError("no numpy", name="numpy"), "set ROLLBOOK_DEBUG=1"),
        (ZeroDivisionError("division"), "unexpected ZeroDivisionError: division; set ROLLBOOK_DEBUG=1"),
    ],
)
def test_other_errors_get_a_next_step(error: Exception, says: str) -> None:
    assert says in describe(error)


def test_text_of_several_lines_becomes_one() -> None:
    assert describe(CommandError("first\n  second;\nthird")) == "first second; third"


def test_only_modules_of_the_server_extra_lead_to_it() -> None:
    assert missing_extra(ModuleNotFoundError("x", name="rich.table")) is not None
    assert missing_extra(ModuleNotFoundError("x", name="rollbook.missing")) is None
    assert missing_extra(ModuleNotFoundError("x")) is None
