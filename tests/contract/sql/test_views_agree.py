"""The views say the same on both databases: every row and every column of the recorded ledger, with its type."""

from typing import Any

import pytest

from rollbook_projections.views import VIEWS
from tests.contract.sql.asking import ask

CHANGING = {"open_rollouts": {"seconds"}}
"""What depends on when it is asked."""


def table(database_url: str, view: str) -> list[dict[str, Any]]:
    answer = ask(database_url, f"SELECT * FROM {view}")
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    kept = [{name: value for name, value in row.items() if name not in CHANGING.get(view, ())} for row in rows]
    return sorted(kept, key=repr)


@pytest.mark.parametrize("view", VIEWS)
def test_view_has_the_same_rows(recorded_on_sqlite: str, recorded_on_postgres: str, view: str) -> None:
    on_sqlite, on_postgres = table(recorded_on_sqlite, view), table(recorded_on_postgres, view)
    assert len(on_sqlite) >= 4
    assert on_sqlite == on_postgres
    assert [list(map(type, row.values())) for row in on_sqlite] == [
        list(map(type, row.values())) for row in on_postgres
    ]


@pytest.mark.parametrize("view", VIEWS)
def test_no_column_is_always_empty(recorded_url: str, view: str) -> None:
    rows = table(recorded_url, view)
    assert [name for name in rows[0] if all(row[name] is None for row in rows)] == []


def test_texts_compare_by_their_bytes_whatever_the_locale(recorded_on_postgres: str) -> None:
    found = ask(
        recorded_on_postgres,
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " JOIN pg_collation l ON l.oid = a.attcollation"
        " WHERE c.relkind = 'v' AND c.relnamespace = 'public'::regnamespace AND l.collname <> 'C'",
    )
    assert found.rows == []
