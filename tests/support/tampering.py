"""Changes to a ledger's database behind its guards' back, as somebody with the rights of its owner can make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rollbook.ledger.urls import SQLITE, parse_url
from tests.support.sql import Shell, shell

type Statement = str | tuple[str, Sequence[Any]]


def alter(database_url: str, *statements: Statement) -> None:
    """Change the database while its guards are away; they stand again afterwards."""
    with shell(database_url) as connection, _unguarded(database_url, connection):
        for statement in statements:
            text, parameters = (statement, ()) if isinstance(statement, str) else statement
            connection.rows(text, parameters)


@contextmanager
def _unguarded(database_url: str, connection: Shell) -> Iterator[None]:
    if parse_url(database_url).get_backend_name() == SQLITE:
        guards = connection.rows("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        for name, _ in guards:
            connection.rows(f"DROP TRIGGER {name}")
        yield
        for _, text in guards:
            connection.rows(text)
    else:
        guarded = connection.rows("SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal")
        for (table,) in guarded:
            connection.rows(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        for (table,) in guarded:
            connection.rows(f"ALTER TABLE {table} ENABLE TRIGGER USER")
