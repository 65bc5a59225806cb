"""What a runner is handed with a claimed rollout: its request, its opened secrets and what its deadlines leave it."""

from __future__ import annotations

import msgspec

from rollbook.ledger import codec
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.reader import Work
from rollbook.ledger.secrets import SecretKeys

from .attempts import Attempt
from .runners import Deadline
from .wire import Assignment


def prepared(attempt: Attempt, work: Work, keys: SecretKeys) -> tuple[Assignment, Deadline]:
    """The assignment of an attempt. The time in the queue counts against the agent's deadline.

    Raises:
        SecretKeyError: the secrets were sealed with a key that is not in use.
        msgspec.ValidationError: a deadline is no number.
    """
    request = bytes(work.request.request)
    secrets = keys.open(work.sealed, attempt.rollout_id)
    queued_sec = (attempt.queued.ended_at - attempt.queued.started_at) / MICROSECONDS
    limits = _limits(request)
    agent = limits.agent_timeout_sec
    deadline = Deadline(
        agent_sec=agent,
        agent_left_sec=None if agent is None else agent - queued_sec,
        grader_sec=limits.grader_timeout_sec,
    )
    assignment = Assignment(
        key=attempt.key,
        rollout_id=attempt.rollout_id,
        request=request,
        chat_completions_url=secrets.chat_completions_url,
        llm_api_key=secrets.llm_api_key,
        queued_sec=queued_sec,
        attempt=attempt.attempt,
        scheduler=attempt.scheduler,
    )
    return assignment, deadline


class _Limits(msgspec.Struct, frozen=True):
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None


def _limits(request: bytes) -> _Limits:
    """The deadlines of a request, whose other parts may hold what msgspec does not read (lone surrogates)."""
    try:
        return msgspec.json.decode(request, type=_Limits, strict=False)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return msgspec.convert(codec.loads(request), _Limits, strict=False)
