"""What the demo shows at the end: rewards, durations, and what plain SQL says of the ledger."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .batch import Graded, rollout_id

STAGES = ("queue", "agent", "grading")
_DURATIONS = "SELECT seconds FROM phase_durations WHERE stage = ? ORDER BY seconds"

DISAGREEMENTS = (
    "SELECT label AS truth, sum(reward) AS correct, count(*) - sum(reward) AS wrong\n"
    "FROM reward_outcomes GROUP BY label\n"
    "HAVING min(reward) < max(reward) ORDER BY wrong DESC, truth"
)
TIMELINE = (
    "SELECT seq, substr(at, 12) AS at, type, detail\nFROM rollout_timeline WHERE rollout_id = '{id}' ORDER BY seq"
)


def rewards_table(graded: Sequence[Graded]) -> RenderableType:
    """One line for each row: its attempts' rewards and their mean."""
    attempts = max(len(item.results) for item in graded)
    table = _table("row", "question", "truth", *(str(number) for number in range(1, attempts + 1)), "mean")
    table.columns[1].justify = "left"
    for number, item in enumerate(graded, start=1):
        cells = [_reward(reward) for reward in item.rewards]
        table.add_row(str(number), item.row.question, item.row.ground_truth, *cells, _mean(item.rewards))
    every = [reward for item in graded for reward in item.rewards]
    table.add_section()
    table.add_row("all", "", "", *[""] * attempts, _mean(every))
    return table


def _reward(reward: float | None) -> Text:
    if reward is None:
        return Text("–", style="yellow")
    return Text(f"{reward:g}", style="green" if reward == 1 else "red")


def _mean(rewards: Sequence[float | None]) -> str:
    known = [reward for reward in rewards if reward is not None]
    return f"{sum(known) / len(known):.2f}" if known else "–"


def durations_table(db: sqlite3.Connection) -> RenderableType:
    """How long the phases took, in milliseconds."""
    table = _table("phase", "rollouts", "p50", "p95", "max")
    table.columns[0].justify = "left"
    for stage in STAGES:
        seconds = [row[0] for row in db.execute(_DURATIONS, (stage,))]
        if seconds:
            cells = (percentile(seconds, 0.50), percentile(seconds, 0.95), seconds[-1])
            table.add_row(stage, str(len(seconds)), *(f"{cell * 1_000:.1f}" for cell in cells))
    return table


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def queries(graded: Sequence[Graded]) -> list[tuple[str, str]]:
    """Two queries that anybody could type, each with what it tells."""
    return [
        ("Tasks whose attempts disagree, the ones a policy learns from:", DISAGREEMENTS),
        ("One rollout from admission to result:", TIMELINE.format(id=instructive(graded))),
    ]


def instructive(graded: Sequence[Graded]) -> str:
    """A rollout that went wrong if there is one, for its story is the more interesting one."""
    for number, item in enumerate(graded, start=1):
        for attempt, reward in enumerate(item.rewards, start=1):
            if reward != 1:
                return rollout_id(number, attempt)
    return rollout_id(1, 1)


def query_table(db: sqlite3.Connection, query: str) -> RenderableType:
    """A query's rows under its column names."""
    cursor = db.execute(query)
    names = [column[0] for column in cursor.description]
    rows = cursor.fetchall()
    table = _table(*names)
    for index in range(len(names)):
        if not all(isinstance(row[index], int | float | None) for row in rows):
            table.columns[index].justify = "left"
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: Any) -> Text:
    if value is None:
        return Text("")
    return Text(f"{value:g}" if isinstance(value, float) else str(value))


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def open_ledger(path: Path) -> sqlite3.Connection:
    """The ledger's file, for reading; close it."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA query_only = 1")
    return db


def count_events(db: sqlite3.Connection) -> int:
    """How many events the ledger holds."""
    found: int = db.execute("SELECT count(*) FROM events").fetchone()[0]
    return found
