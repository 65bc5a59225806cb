"""One poll: renew the lease, wait for a change, answer the result. No connection is held while it waits."""

from __future__ import annotations

from typing import Any

import msgspec

from rollbook.ledger import codec
from rollbook.ledger.commands import Poll
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import UnknownRollout, WrongLease
from rollbook.ledger.secrets import token_digest
from rollbook_client.events import RolloutFinished
from rollbook_projections import RolloutState

_encoder = msgspec.json.Encoder()


class ResultBody(msgspec.Struct, frozen=True, gc=False):
    """A result on the wire: all keys always, the sample's stored bytes spliced in as they are."""

    rollout_id: str
    status: str
    sample: msgspec.Raw | None = None
    err_message: str | None = None
    err_category: str | None = None


async def poll_rollout(
    ledger: Ledger, rollout_id: str, *, token: str, wait_sec: float, retention_sec: float | None
) -> bytes:
    """The result as JSON, once the status changed or ``wait_sec`` seconds are over; a terminal one at once.

    The renewal happens once, at the start, and stands whatever becomes of the caller. Whoever waits when the rollout
    ends is told its result, however short the retention.

    Raises:
        UnknownRollout: no such rollout, or its retention (seconds; None: kept for ever) is over, or it is archived.
        WrongLease: the token is not the rollout's.
        LedgerUnavailable: the lease was not renewed, or the result could not be read.
    """
    # Watched from before the renewal on: a change between the two must not be missed.
    with ledger.feed.watch(rollout_id) as watch:
        try:
            state = await ledger.submit(Poll(rollout_id, token_digest(token)))
        except WrongLease:
            # Once a result is forgotten nobody learns that its token was wrong.
            if retention_sec is not None:
                found = await ledger.reader.state(rollout_id)
                if retention_is_over(found, retention_sec, now_us=ledger.clock()):
                    raise UnknownRollout(rollout_id) from None
            raise
        if retention_is_over(state, retention_sec, now_us=ledger.clock()):
            raise UnknownRollout(rollout_id)
        if state.finished_at is None and wait_sec > 0:
            state = await watch.change(state, wait_sec)
    if state.finished_at is None:
        return _encoder.encode(ResultBody(rollout_id, state.status))
    return result_bytes(rollout_id, await ledger.reader.result(state))


def retention_is_over(state: RolloutState | None, retention_sec: float | None, *, now_us: int) -> bool:
    """Whether a result's retention (seconds after its end) has passed at ``now_us``."""
    if state is None or retention_sec is None or state.finished_at is None:
        return False
    return now_us - state.finished_at > retention_sec * MICROSECONDS


def result_bytes(rollout_id: str, finished: RolloutFinished) -> bytes:
    """The body that answers a finished rollout."""
    sample = finished.sample
    if sample is not None and finished.reduced:
        sample = reduced_sample(sample)
    message = finished.err_message
    body = ResultBody(rollout_id, finished.status, sample, message, finished.err_category)
    try:
        return _encoder.encode(body)
    except UnicodeEncodeError:
        return _encoder.encode(msgspec.structs.replace(body, err_message=_without_surrogates(message)))


def reduced_sample(sample: msgspec.Raw) -> msgspec.Raw:
    """A sample whose messages cannot be sent: they are left out, what was earned with them is not."""
    kept: dict[str, Any] = codec.loads(bytes(sample))
    label = kept.get("label")
    answer = {
        "messages": [],
        "label": _without_surrogates(label) if isinstance(label, str) else label,
        "reward": kept.get("reward"),
        "remove_sample": kept.get("remove_sample", False),
        "metrics": {},
        "extra_fields": {},
    }
    return msgspec.Raw(_encoder.encode(answer))


def _without_surrogates(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode()
