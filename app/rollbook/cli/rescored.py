"""What `rollbook rescore` tells: what became of each rollout, for people and for scripts, and of all together."""

from __future__ import annotations

from typing import Literal

import msgspec

from . import output
from .tables import Column, put_table
from .verdicts import counted

UNSCORED = 1
"""The exit code where something went wrong."""


class Outcome(msgspec.Struct, kw_only=True):
    """What became of one rollout.

    ``was`` is its reward before. A score that did not come back is null; ``errors`` say why where something went
    wrong. ``scoring`` counts the rollout's later scorings from 1; null where nothing was written.
    """

    rollout_id: str
    outcome: Literal["scored", "skipped", "failed"]
    reason: str | None = None
    was: float | None = None
    reward: float | None = None
    rewards: dict[str, float | None] = {}
    metrics: dict[str, float | None] = {}
    errors: list[str] = []
    scoring: int | None = None
    judge_tokens: int = 0


class Told:
    """How many came to what."""

    def __init__(self) -> None:
        self.counts = {"scored": 0, "skipped": 0, "failed": 0}
        self.wrong = 0
        self.judge_tokens = 0

    def outcome(self, outcome: Outcome) -> None:
        """Count one."""
        self.counts[outcome.outcome] += 1
        self.wrong += bool(outcome.errors) or outcome.outcome == "failed"
        self.judge_tokens += outcome.judge_tokens

    def end(self) -> int:
        """The exit code."""
        return UNSCORED if self.wrong else 0


class JsonLines(Told):
    """One object for each rollout, as it comes."""

    def outcome(self, outcome: Outcome) -> None:
        super().outcome(outcome)
        output.put_json(outcome)


class Table(Told):
    """All rollouts in a table, at the end."""

    def __init__(self, *, dry_run: bool) -> None:
        super().__init__()
        self._dry_run = dry_run
        self._rows: list[tuple[object, ...]] = []

    def outcome(self, outcome: Outcome) -> None:
        super().outcome(outcome)
        said = outcome.reason or "; ".join(outcome.errors)
        null = [
            name for scores in (outcome.rewards, outcome.metrics) for name, value in scores.items() if value is None
        ]
        new = _number(outcome.reward) if outcome.outcome == "scored" else None
        self._rows.append((outcome.rollout_id, outcome.outcome, _number(outcome.was), new, ", ".join(null), said))

    def end(self) -> int:
        columns = ("rollout", "outcome", "was", "reward", "null")
        if not self._rows:
            output.put("no rollouts to score\n")
            return super().end()
        put_table((*map(Column, columns), Column("why", "wrap")), self._rows)
        parts = [f"{number} {name}" for name, number in self.counts.items() if number]
        if self.judge_tokens:
            parts.append(f"judges used {counted(self.judge_tokens, 'token')}")
        output.put(f"\n{', '.join(parts)}{'; nothing was changed (--dry-run)' if self._dry_run else ''}\n")
        return super().end()


def _number(reward: float | None) -> str:
    return "null" if reward is None else f"{reward:.10g}"
