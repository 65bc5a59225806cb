"""Everything that a ledger's database holds, as bytes to search: what its files, or a dump of it, would show."""

from __future__ import annotations

from pathlib import Path

from rollbook.ledger.sqlite.engines import database_path
from rollbook.ledger.urls import POSTGRES, parse_url
from tests.support.sql import Shell, shell

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
_COLUMNS = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = ?"


def all_bytes(database_url: str) -> bytes:
    """SQLite's file with its log and all else in its folder; on PostgreSQL every value of every table, and the
    messages of the server, where it is the tests' own."""
    url = parse_url(database_url)
    if url.get_backend_name() == POSTGRES:
        messages = Path(str(url.query.get("host"))) / "log"
        with shell(database_url) as opened:
            values = [_values(opened, table) for (table,) in opened.rows(_TABLES)]
        return b"\n".join([*values, messages.read_bytes() if messages.is_file() else b""])
    return b"".join(path.read_bytes() for path in database_path(url).parent.iterdir() if path.is_file())


def _values(opened: Shell, table: str) -> bytes:
    # Bytes as they are, for what is encoded as hex is found by nobody's search.
    values = ", ".join(
        f'"{name}"' if kind == "bytea" else f"convert_to(\"{name}\"::text, 'UTF8')"
        for name, kind in opened.rows(_COLUMNS, (table,))
    )
    rows = opened.rows(f'SELECT {values} FROM "{table}"')
    return b"\n".join(value for row in rows for value in row if value is not None)
