"""What went wrong, in one line that says what to do next."""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa

from rollbook.ledger.codec import CodecError
from rollbook.ledger.refusals import LedgerError, LedgerUnavailable
from rollbook.ledger.schema import SchemaError
from rollbook.ledger.secrets import SecretKeyError
from rollbook.ledger.urls import DatabaseUrlError

from . import missing_extra

FAILED = 1
FILE_FIX = "check that the disk has room and that the file can be read and written"
DEBUG_VARIABLE = "ROLLBOOK_DEBUG"

_SAY_WHAT_TO_DO = (DatabaseUrlError, SchemaError, SecretKeyError, LedgerError)


class CommandError(Exception):
    """A command cannot do what it was asked; the message says what to do next. ``code`` is its exit code."""

    def __init__(self, message: str, *, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def describe(error: Exception) -> str:
    """The line for an error, without the leading ``rollbook:``."""
    return " ".join(_text(error).split())


def _text(error: Exception) -> str:
    if isinstance(error, LedgerUnavailable) and ";" not in str(error):
        return f"{error}; {error.fix or FILE_FIX}, then try again"
    if isinstance(error, (CommandError, *_SAY_WHAT_TO_DO)):
        return str(error)
    if isinstance(error, CodecError):
        return f"{error}; find the damaged event with `rollbook audit verify`"
    if isinstance(error, sqlite3.Error | sa.exc.DBAPIError):
        return f"the ledger cannot be read: {_cause(error)}; check the file with `rollbook audit verify`"
    if isinstance(error, OSError):
        return f"{error}; check the path and its permissions, then try again"
    line = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
    if line is not None:
        return line
    return f"unexpected {type(error).__name__}: {error}; set {DEBUG_VARIABLE}=1 to see where it comes from"


def _cause(error: sqlite3.Error | sa.exc.DBAPIError) -> object:
    return error.orig if isinstance(error, sa.exc.DBAPIError) else error
