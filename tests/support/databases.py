"""The databases that keep a ledger, for tests that hold on each of them: empty places, and ledgers that are empty."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rollbook.ledger.schema import upgrade
from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.ledger.urls import POSTGRES, SQLITE, parse_url
from tests.support.postgres import fresh_database

DATABASES = (SQLITE, POSTGRES)
SECRET_KEY = "c2VjcmV0LWtleS1vZi10ZXN0cy13aXRoLTMyLWJ5dGU="
"""What processes on PostgreSQL are given as ROLLBOOK_SECRET_KEY."""

type NewLedger = Callable[[str, Path], AbstractContextManager[str]]


@contextmanager
def empty_place(database: str, folder: Path) -> Iterator[str]:
    """The URL of a place for a ledger, with nothing there yet; files lie in the folder."""
    if database == POSTGRES:
        with fresh_database() as url:
            yield url
    else:
        yield sqlite_url(folder)


@contextmanager
def ledger_templates() -> Iterator[NewLedger]:
    """What makes migrated, empty ledgers: it takes the database and a folder for files, and gives the URL for a block.

    They are copies of one that is migrated when the first of its database is wanted: migrating anew for each test would
    be most of its time.
    """
    templates: dict[str, str] = {}
    with ExitStack() as kept:
        templates_folder = Path(kept.enter_context(TemporaryDirectory(prefix="rollbook-template-")))

        @contextmanager
        def new_ledger(database: str, folder: Path) -> Iterator[str]:
            if database not in templates:
                templates[database] = kept.enter_context(empty_place(database, templates_folder))
                upgrade(parse_url(templates[database]))
            if database == POSTGRES:
                with fresh_database(templates[database]) as url:
                    yield url
            else:
                shutil.copyfile(sqlite_file(templates_folder), sqlite_file(folder))
                yield sqlite_url(folder)

        yield new_ledger


def secret_key_of(database_url: str) -> dict[str, str]:
    """The variables that processes over a ledger need: none where they make their key themselves."""
    on_postgres = parse_url(database_url).get_backend_name() == POSTGRES
    return {KEY_VARIABLE: SECRET_KEY} if on_postgres else {}


def sqlite_file(folder: Path) -> Path:
    return folder / "ledger.sqlite3"


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{sqlite_file(folder)}"
