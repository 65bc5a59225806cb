"""Bringing a database to the schema this code works with, and saying plainly when it is not there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

import rollbook_migrations

from .database import Database, database_of
from .refusals import SchemaError

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["SchemaError", "alembic_config", "check", "downgrade", "revision", "upgrade"]


def revision(url: sa.URL) -> str | None:
    """The schema revision of the database; None where there is no ledger yet.

    Raises:
        SchemaError: it is no database of ours.
        LedgerUnavailable: it exists and cannot be read.
    """
    return database_of(url).revision()


def check(url: sa.URL) -> None:
    """Raises:
    SchemaError: the schema is missing, old or newer than this code.
    LedgerUnavailable: the database cannot be read.
    """
    check_database(database_of(url))


def check_database(database: Database) -> None:
    """The same for a database at hand."""
    found = database.revision()
    if found == rollbook_migrations.HEAD:
        return
    if found is None:
        raise SchemaError(f"there is no ledger at {database.describe()}; make one with `rollbook db upgrade`")
    _check_not_newer(found)
    raise SchemaError(
        f"the ledger's schema is {found}, this Rollbook works with {rollbook_migrations.HEAD}; "
        "run `rollbook db upgrade`"
    )


def _check_not_newer(found: str | None) -> None:
    # Revisions are numbers of one length, and so in the order of their texts.
    if found is not None and found > rollbook_migrations.HEAD:
        raise SchemaError(
            f"the ledger's schema is {found}, and this Rollbook knows none after {rollbook_migrations.HEAD}; "
            "a newer Rollbook upgraded it: install that one here too"
        )


def upgrade(url: sa.URL, to: str = "head") -> str | None:
    """Migrate up to ``to`` in one transaction; harmless where nothing is to do, or when two processes try at once.

    Returns the revision that was there before, None where there was no ledger.

    Raises:
        SchemaError: the schema is newer than this code.
        LedgerUnavailable: the database cannot be made or written.
    """
    database = database_of(url)
    before = database.revision()
    _check_not_newer(before)
    if to != "head" or before != rollbook_migrations.HEAD:
        database.migrate(to, down=False)
    return before


def downgrade(url: sa.URL, to: str) -> None:
    """Migrate down to ``to`` (``base`` removes everything)."""
    database_of(url).migrate(to, down=True)


def alembic_config(connection: sa.Connection) -> Config:
    """Alembic's configuration for a connection with an open transaction."""
    # Imported here: a process whose schema is current never pays for alembic.
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)  # a step a line is nothing for a server's log
    config = Config()
    config.set_main_option("script_location", str(Path(rollbook_migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
