"""What databases say differently gives the same: times, numbers, sums and beginnings of labels, hard ones too."""

import json
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from rollbook_projections.views import view_sql
from tests.contract.sql.asking import ask

LAST_US = 4_102_444_800_000_000
"""The year 2100: much later, PostgreSQL counts milliseconds less finely."""
BEYOND_US = (253_402_300_800_000_000, 2**62, -(2**62))
"""Years that SQLite does not know: null on both."""
CHOSEN = random.Random(20)
TIMES = [
    *(0, 1, 499, 500, 501, 999_499, 999_500, 999_999, -1, -500, -501, 1_772_397_970_000_900),
    *(CHOSEN.randrange(LAST_US) for _ in range(3_000)),
    *(CHOSEN.randrange(LAST_US // 1_000) * 1_000 + CHOSEN.randrange(480, 502) for _ in range(3_000)),
    *BEYOND_US,
]
NUMBERS = [
    *(0.0, -0.0, 1.0, -1.0, 12.5, 0.1, 0.1 + 0.2, 1 / 3, 1e-4, 9.9999999999999e-5, 1e-5, -1.5e-7, 5e-324, -5e-324),
    *(123456789012345.0, 99999999999999.95, 999999999999999.0, 1e15, -1e16, 1.5e100, 1e308, 1.7976931348623157e308),
    *(CHOSEN.choice((-1, 1)) * CHOSEN.random() * 10.0 ** CHOSEN.randrange(-12, 13) for _ in range(2_000)),
    *(round(CHOSEN.random() * 10.0 ** CHOSEN.randrange(6), CHOSEN.randrange(6)) for _ in range(1_000)),
]
LABELS = ["", "/", "/a", "a", "a/", "a/b/c", "a//b", "ä/ö", "\U0001f600/x", "a\\/b", "a%/b", "x" * 8_000 + "/y", None]
NAMES = [
    *("plain", "", 'quo"te', "back\\slash", "a/b", "ä\u2028\ufeff\U0001f600", "\x7f\x80", "{}[]:,", "%s"),
    *(chr(code) for code in range(1, 0x20)),
]
REWARDS: list[list[float | None]] = [
    [],
    [None],
    [None, 0.5],
    [0.25, 0.5, -1.0],
    [1e308],
    [1e308, 1e308],
    [-1e308, -1e308],
    [1e308, -1e308],
    [1.7976931348623157e308],
    [1e300, 1.0],
    [5e-324],
    [0.1, 0.2],
]


def on_sqlite(text: str, values: Sequence[Any]) -> list[Any]:
    with closing(sqlite3.connect(":memory:")) as connection:
        query = f"SELECT {view_sql(text, 'sqlite')} FROM (SELECT ? AS x)"
        return [connection.execute(query, (value,)).fetchone()[0] for value in values]


def on_postgres(database_url: str, text: str, values: Sequence[Any], type_name: str) -> list[Any]:
    given = f"unnest($1::{type_name}[]) WITH ORDINALITY AS given(x, nth)"
    query = f"SELECT {view_sql(text, 'postgresql')} FROM {given} ORDER BY nth"
    return [row[0] for row in ask(database_url, query, list(values)).rows]


@pytest.mark.parametrize(
    "text, type_name, values",
    [
        ("{iso:x}", "bigint", TIMES),
        ("substr({iso:x}, 1, 13) || ':00Z'", "bigint", TIMES),
        ("{seconds:x - 17}", "bigint", [value for value in TIMES if value > -(2**61)]),
        ("{real:x}", "double precision", NUMBERS),
        ("{head:x}", "text", LABELS),
        ("{text:{head:x}}", "text", LABELS),
        ("{json:x}", "text", NAMES),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rendering_is_the_same(recorded_on_postgres: str, text: str, type_name: str, values: Sequence[Any]) -> None:
    shown = on_sqlite(text, values)
    told = on_postgres(recorded_on_postgres, text, values, type_name)
    assert [item for item in zip(values, shown, told, strict=True) if item[1] != item[2]] == []
    assert len(set(shown)) > 5


WEIGHED: list[list[tuple[float | None, float]]] = [
    *([(value, 1.0) for value in rewards] for rewards in REWARDS),
    [(0.5, 0.25), (1.0, -2.0), (None, 3.0), (0.75, 0.0)],
    [(5e-324, -0.5)],
    [(5e-324, 0.5), (1.0, 0.1)],
    [(1e-200, 1e-200), (3.0, 7.0)],
    [(1e300, 1e-300), (1e-300, 1e300)],
    [(1e300, 1e10)],
    [(-1e300, 1e10), (5.0, 0.5)],
    [(1e300, 1e10), (1e300, -1e10)],
    [(1e308, 0.5), (1e308, 0.5), (1e308, 0.5), (1e308, 0.5)],
    [(1e308, 5e-324), (5e-324, 5e-324), (0.0, 1e308)],
]


@pytest.mark.parametrize("weighed", WEIGHED, ids=str)
def test_sum_by_any_weights_is_the_same(recorded_on_postgres: str, weighed: list[tuple[float | None, float]]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE sc (value REAL, weight REAL)")
        connection.executemany("INSERT INTO sc VALUES (?, ?)", weighed)
        ((shown,),) = connection.execute(f"SELECT {view_sql('{summed:sc}', 'sqlite')} FROM sc")
    given = "unnest($1::double precision[], $2::double precision[]) AS sc(value, weight)"
    values, weights = [value for value, _ in weighed], [weight for _, weight in weighed]
    told = ask(recorded_on_postgres, f"SELECT {view_sql('{summed:sc}', 'postgresql')} FROM {given}", values, weights)
    assert told.rows == [(shown,)]


@pytest.mark.parametrize("rewards", REWARDS, ids=str)
def test_sum_of_rewards_is_the_same(recorded_on_postgres: str, rewards: list[float | None]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE sc (value REAL, weight REAL)")
        connection.executemany("INSERT INTO sc VALUES (?, 1.0)", [(value,) for value in rewards])
        ((shown,),) = connection.execute(f"SELECT {view_sql('{weighted:sc}', 'sqlite')} FROM sc")
    given = (
        "(SELECT value, CAST(1 AS DOUBLE PRECISION) AS weight FROM unnest($1::double precision[]) AS given(value)) sc"
    )
    told = ask(recorded_on_postgres, f"SELECT {view_sql('{weighted:sc}', 'postgresql')} FROM {given}", rewards)
    assert told.rows == [(shown,)]


def test_texts_are_quoted_as_json(recorded_on_postgres: str) -> None:
    for shown in (on_sqlite("{json:x}", NAMES), on_postgres(recorded_on_postgres, "{json:x}", NAMES, "text")):
        assert [json.loads(text) for text in shown] == NAMES
