"""What goes wrong on the wire: one table from errors to statuses, and the bodies they are answered with."""

from __future__ import annotations

import logging

import msgspec

from rollbook.ledger.refusals import (
    AdmissionClosed,
    CommandFailed,
    KeyReused,
    LedgerUnavailable,
    QueueFull,
    RolloutArchived,
    RolloutKnown,
    UnknownRollout,
    WrongLease,
)
from rollbook.logformat import about

from .outages import Outages

log = logging.getLogger(__name__)

Headers = tuple[tuple[bytes, bytes], ...]

BODY_IS_NO_JSON = "the body is no JSON"
UNKNOWN_ROLLOUT = "unknown rollout_id"
KEY_REUSED = "Idempotency-Key was used with another request before; send a new key with every new request"
DRAINING = "rollout server is draining: it takes no new rollouts now; retry later"
SHUTTING_DOWN = "rollout server is shutting down"
ONE_SELECTOR = "pass exactly one selector: ids, prefix, or all"
UNAUTHORIZED = "unauthorized"
INTERNAL_ERROR = "internal server error; see the server's log"


class FieldError(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request's shape: where (`["body", "label"]`), what, and which kind of wrong."""

    loc: tuple[str | int, ...]
    msg: str
    type: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error: a list for a wrong shape (422), else one sentence."""

    detail: str | tuple[FieldError, ...]


class ApiError(Exception):
    """A request is answered with an error status."""

    def __init__(self, status: int, detail: str | tuple[FieldError, ...], *, headers: Headers = ()) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.headers = headers


class ClientGoneError(Exception):
    """The client went away in the middle of its request; there is nobody to answer."""


def wrong_shape(*loc: str | int, msg: str, kind: str = "value_error") -> ApiError:
    """A 422 about one field."""
    return ApiError(422, (FieldError(loc, msg, kind),))


def _retry_after(seconds: int) -> Headers:
    return ((b"retry-after", b"%d" % seconds),)


_TABLE: dict[type[Exception], tuple[int, str, Headers]] = {
    UnknownRollout: (404, UNKNOWN_ROLLOUT, ()),
    # To a trainer it is as if the result's retention were over.
    RolloutArchived: (404, UNKNOWN_ROLLOUT, ()),
    WrongLease: (403, "invalid polling lease", ()),
    RolloutKnown: (409, "rollout_id is already registered", ()),
    KeyReused: (422, KEY_REUSED, ()),
    AdmissionClosed: (503, DRAINING, _retry_after(5)),
    QueueFull: (429, "rollout queue is full; retry later", _retry_after(5)),
    CommandFailed: (422, "the ledger cannot store this request's data; see the server's log", ()),
    LedgerUnavailable: (503, "the ledger is not available now; retry later", _retry_after(1)),
}


def as_api_error(error: Exception, outages: Outages, *, rollout_id: str | None = None) -> ApiError:
    """How an error is answered. One that is in no table is ours: it is logged, and the client learns nothing of it.

    ``outages`` are told of a ledger that is not available; ``rollout_id`` is whom the request was about, for the log.
    """
    if isinstance(error, ApiError):
        return error
    row = _TABLE.get(type(error))
    if row is None:
        log.error("a request failed in a way nobody foresaw", exc_info=error, extra=about(rollout_id))
        return ApiError(500, INTERNAL_ERROR)
    status, detail, headers = row
    if isinstance(error, LedgerUnavailable):
        outages.met(error, rollout_id=rollout_id)
    if isinstance(error, CommandFailed):
        log.warning("answered %d: %s", status, error, extra=about(rollout_id))
    return ApiError(status, detail, headers=headers)
