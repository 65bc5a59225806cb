"""What a runner is handed with a claimed rollout: its request and its opened secrets."""

from __future__ import annotations

from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.reader import Work
from rollbook.ledger.secrets import SecretKeys

from .attempts import Attempt
from .wire import Assignment


def prepared(attempt: Attempt, work: Work, keys: SecretKeys) -> Assignment:
    """The assignment of an attempt. The time in the queue counts against the agent's deadline.

    Raises:
        SecretKeyError: the secrets were sealed with a key that is not in use.
    """
    secrets = keys.open(work.sealed, attempt.rollout_id)
    return Assignment(
        key=attempt.key,
        rollout_id=attempt.rollout_id,
        request=bytes(work.request.request),
        chat_completions_url=secrets.chat_completions_url,
        llm_api_key=secrets.llm_api_key,
        queued_sec=(attempt.queued.ended_at - attempt.queued.started_at) / MICROSECONDS,
        attempt=attempt.attempt,
        scheduler=attempt.scheduler,
    )
