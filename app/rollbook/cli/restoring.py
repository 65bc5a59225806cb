"""`rollbook rescore --restore`: an earlier scoring stands before a rollout again, as a new one beside all others."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.ledger.commands import LaterScore, Rescore
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.reader import Reader
from rollbook.ledger.refusals import CommandFailed, Refusal
from rollbook.ledger.scored import Scorable, scores_of

from .rescored import Outcome

_TASKS = "SELECT scoring, task FROM scorings WHERE number = ? ORDER BY scoring"
_RESTORED = "restored scoring "
"""Before a number, in the place of a task."""


class Restoring:
    """Puts scoring number `scoring` in front; 0 is what the rollout itself was given. Asks no task and no judge."""

    def __init__(self, scoring: int, *, by: str) -> None:
        self._scoring = scoring
        self._by = by

    async def one(self, found: Scorable, reader: Reader, ledger: Ledger | None) -> Outcome:
        """What became of one rollout that is over and not archived; without a ledger nothing is written."""
        outcome = Outcome(rollout_id=found.rollout_id, outcome="restored", was=found.reward)
        tasks: dict[int, str] = dict(await reader.query(_TASKS, (found.number,)))
        last = max(tasks, default=0)
        if self._scoring > last:
            reason = f"it has no scoring {self._scoring}; its last one is {last}"
            return Outcome(rollout_id=found.rollout_id, outcome="failed", reason=reason, was=found.reward)
        scores = await scores_of(reader, found.number, scoring=self._scoring)
        if _origin(last, tasks) == _origin(self._scoring, tasks):
            reason = f"scoring {self._scoring} is in front already"
            return Outcome(rollout_id=found.rollout_id, outcome="skipped", reason=reason, was=found.reward)
        outcome.reward = _summed(scores)
        outcome.rewards = {score.name: score.value for score in scores if score.weight is not None}
        outcome.metrics = {score.name: score.value for score in scores if score.weight is None}
        if ledger is not None:
            command = Rescore(
                rollout_id=found.rollout_id,
                task=f"{_RESTORED}{self._scoring}",
                by=self._by,
                scores=scores,
                reward=outcome.reward,
            )
            try:
                outcome.scoring = await ledger.submit(command)
            except (Refusal, CommandFailed) as error:
                return Outcome(rollout_id=found.rollout_id, outcome="failed", reason=str(error), was=found.reward)
        return outcome


def _origin(scoring: int, tasks: Mapping[int, str]) -> int:
    """The scoring that made these scores: one that was restored is the one that it put in front.

    Equal scores are not enough: what made those that are in front, for one a task that was broken, is told with them.
    """
    while (task := tasks.get(scoring, "")).startswith(_RESTORED):
        scoring = int(task.removeprefix(_RESTORED))
    return scoring


def _summed(scores: tuple[LaterScore, ...]) -> float | None:
    """As `Trace.reward`: what is null does not count, and nothing at all is null."""
    given = [s.weight * s.value for s in scores if s.weight is not None and s.value is not None]
    return sum(given) if given else None
