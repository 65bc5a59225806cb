"""`rollbook rescore --restore`: an earlier scoring stands before a rollout again, as a new one beside all others."""

from __future__ import annotations

from rollbook.ledger.commands import LaterScore, Rescore
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.reader import Reader
from rollbook.ledger.refusals import CommandFailed, Refusal
from rollbook.ledger.scored import Scorable, last_scoring, scores_of

from .rescored import Outcome


class Restoring:
    """Puts scoring number `scoring` in front; 0 is what the rollout itself was given. Asks no task and no judge."""

    def __init__(self, scoring: int, *, by: str) -> None:
        self._scoring = scoring
        self._by = by

    async def one(self, found: Scorable, reader: Reader, ledger: Ledger | None) -> Outcome:
        """What became of one rollout that is over and not archived; without a ledger nothing is written."""
        outcome = Outcome(rollout_id=found.rollout_id, outcome="restored", was=found.reward)
        last = await last_scoring(reader, found.number)
        if self._scoring > last:
            reason = f"it has no scoring {self._scoring}; its last one is {last}"
            return Outcome(rollout_id=found.rollout_id, outcome="failed", reason=reason, was=found.reward)
        scores = await scores_of(reader, found.number, scoring=self._scoring)
        if last == self._scoring or scores == await scores_of(reader, found.number, scoring=last):
            reason = f"the scores of scoring {self._scoring} are in front already"
            return Outcome(rollout_id=found.rollout_id, outcome="skipped", reason=reason, was=found.reward)
        outcome.reward = _summed(scores)
        outcome.rewards = {score.name: score.value for score in scores if score.weight is not None}
        outcome.metrics = {score.name: score.value for score in scores if score.weight is None}
        if ledger is not None:
            command = Rescore(
                rollout_id=found.rollout_id,
                task=f"restored scoring {self._scoring}",
                by=self._by,
                scores=scores,
                reward=outcome.reward,
            )
            try:
                outcome.scoring = await ledger.submit(command)
            except (Refusal, CommandFailed) as error:
                return Outcome(rollout_id=found.rollout_id, outcome="failed", reason=str(error), was=found.reward)
        return outcome


def _summed(scores: tuple[LaterScore, ...]) -> float | None:
    """As `Trace.reward`: what is null does not count, and nothing at all is null."""
    given = [s.weight * s.value for s in scores if s.weight is not None and s.value is not None]
    return sum(given) if given else None
