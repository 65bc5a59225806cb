"""Database URLs: which database keeps the ledger."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

DEFAULT_DATABASE_URL = "sqlite:///.rollbook/ledger.sqlite3"
SQLITE = "sqlite"
POSTGRES = "postgresql"
_FORMS = f"{DEFAULT_DATABASE_URL} or postgresql://user:password@host/database"


class DatabaseUrlError(ValueError):
    """The database URL cannot be used; the message says which forms can."""


def parse_url(url: str) -> sa.URL:
    """A database URL without driver names, which are ours to choose.

    Raises:
        DatabaseUrlError: not a URL, or of a database that Rollbook does not write.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Never with the URL or the library's words for it: what cannot be read may still hold a password.
        raise DatabaseUrlError(f"cannot read the database URL; it looks like {_FORMS}") from None
    backend = parsed.get_backend_name()
    if backend in (POSTGRES, "postgres"):
        if not parsed.database:
            raise DatabaseUrlError("the database URL names no database; write postgresql://user:password@host/database")
        return parsed.set(drivername=POSTGRES)
    if backend != SQLITE:
        raise DatabaseUrlError(f"cannot keep a ledger in {backend!r}; use {_FORMS}")
    if not parsed.database or parsed.database == ":memory:":
        raise DatabaseUrlError(f"a ledger needs a file, since several processes share it; use {DEFAULT_DATABASE_URL}")
    return parsed.set(drivername=SQLITE)
