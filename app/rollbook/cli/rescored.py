"""What `rollbook rescore` tells: what became of each rollout, for people and for scripts, and of all together."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from . import output
from .tables import Column, put_table
from .verdicts import counted

_OUTCOMES = Literal["scored", "restored", "incomplete", "skipped", "failed"]


class Outcome(msgspec.Struct, kw_only=True):
    """What became of one rollout.

    ``was`` is its reward before. A score that did not come back is null; where that is because something went wrong,
    ``lost`` names the methods and judges and ``errors`` say what. ``incomplete`` is a scoring that was not written for
    that. ``scoring`` counts the rollout's later scorings from 1; null where nothing was written.
    """

    rollout_id: str
    outcome: _OUTCOMES
    reason: str | None = None
    was: float | None = None
    reward: float | None = None
    rewards: dict[str, float | None] = {}
    metrics: dict[str, float | None] = {}
    lost: list[str] = []
    errors: list[str] = []
    scoring: int | None = None
    judge_tokens: int = 0


class Told:
    """How many came to what, and how many rollouts each method or judge gave no score."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(get_args(_OUTCOMES), 0)
        self.partial = 0
        self.judge_tokens = 0
        self._lost: dict[str, int] = {}

    def outcome(self, outcome: Outcome) -> None:
        """Count one."""
        self.counts[outcome.outcome] += 1
        self.partial += outcome.outcome == "scored" and bool(outcome.errors)
        self.judge_tokens += outcome.judge_tokens
        for who in outcome.lost:
            self._lost[who] = self._lost.get(who, 0) + 1

    def end(self) -> None:
        """Say what is left to say of all together."""

    @property
    def total(self) -> int:
        """How many there were."""
        return sum(self.counts.values())

    @property
    def complaint(self) -> str | None:
        """What went wrong and what to do; None where nothing did."""
        parts = []
        if failed := self.counts["failed"]:
            parts.append(f"{counted(failed, 'rollout')} could not be scored, and the lines above say why")
        lost = ", ".join(f"{who} ({number})" for who, number in self._lost.items()) or "the scoring as a whole"
        if incomplete := self.counts["incomplete"]:
            parts.append(
                f"nothing is written for {counted(incomplete, 'rollout')}, since scores did not come back from {lost}; "
                "mend that and run this again, or put what came back in front with --keep-partial"
            )
        if self.partial:
            parts.append(
                f"{counted(self.partial, 'rollout')} scored in part, since scores did not come back from {lost}; "
                "mend that and run this again, or go back with --restore"
            )
        return "; ".join(parts) or None


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
        new = _number(outcome.reward) if outcome.outcome in ("scored", "restored") else None
        self._rows.append((outcome.rollout_id, outcome.outcome, _number(outcome.was), new, ", ".join(null), said))

    def end(self) -> None:
        columns = ("rollout", "outcome", "was", "reward", "null")
        put_table((*map(Column, columns), Column("why", "wrap")), self._rows)
        parts = [f"{number} {name}" for name, number in self.counts.items() if number]
        if self.judge_tokens:
            parts.append(f"judges used {counted(self.judge_tokens, 'token')}")
        output.put(f"\n{', '.join(parts)}{'; nothing was changed (--dry-run)' if self._dry_run else ''}\n")


def _number(reward: float | None) -> str:
    return "null" if reward is None else f"{reward:.10g}"
