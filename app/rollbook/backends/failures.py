"""What an error of user code becomes: a category of the wire and a message that says something."""

from __future__ import annotations

import asyncio

import msgspec

from rollbook.backends.errors import MachineError
from rollbook_client.statuses import RolloutErrorCategory

_PROVIDER_ERRORS = frozenset(
    {"SandboxConnectionException", "SandboxRateLimitException", "PoolStateStoreUnavailableException"}
)
_PROVIDER_API_ERRORS = frozenset({"SandboxApiException", "SandboxAPIError"})
_PROVIDER_STATUS_CODES = frozenset({401, 402, 403, 429, 500, 502, 503, 504})
_GROUP_MEMBERS_SHOWN = 3


class Failure(msgspec.Struct, frozen=True):
    """Why a stage failed."""

    message: str
    category: RolloutErrorCategory


def categorized(error: BaseException) -> RolloutErrorCategory:
    """The category of an error that user code raised.

    Sandbox providers' errors are told by class name, base classes included: their SDKs are optional and not
    imported here. An API error is the provider's failure only with a status that says so; a 404 is the task's.
    A `MachineError` is the server's side of it, whatever code it came through.
    """
    if isinstance(error, MachineError):
        return RolloutErrorCategory.INTERNAL_ERROR
    if isinstance(error, TimeoutError):
        return RolloutErrorCategory.TIMEOUT
    if isinstance(error, (ValueError, TypeError, AssertionError)):
        return RolloutErrorCategory.VALIDATION_ERROR
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _PROVIDER_ERRORS:
        return RolloutErrorCategory.HTTP_ERROR
    status_code = getattr(error, "status_code", None)
    if names & _PROVIDER_API_ERRORS and isinstance(status_code, int) and status_code in _PROVIDER_STATUS_CODES:
        return RolloutErrorCategory.HTTP_ERROR
    return RolloutErrorCategory.AGENT_ERROR


def failure_of(error: BaseException, who: str) -> Failure:
    """The failure for an error raised by `who` ("workflow", "grader"): its own text, explained where it has none."""
    kind = type(error).__name__
    if isinstance(error, asyncio.CancelledError):
        return Failure(
            f"{who} raised {kind} although nobody had cancelled the rollout: something it awaited was cancelled; "
            f"catch it around that await, or find out what cancels it",
            RolloutErrorCategory.AGENT_ERROR,
        )
    if not isinstance(error, Exception) and not isinstance(error, BaseExceptionGroup):
        return Failure(
            f"{who} raised {_called(error)}, which would end the whole process; raise an ordinary exception instead",
            RolloutErrorCategory.AGENT_ERROR,
        )
    if isinstance(error, MemoryError) and not _text(error):
        return Failure(
            f"{who} ran out of memory (MemoryError): it asked for more than its process may have; "
            "allocate less, or raise the memory limit of the runners",
            RolloutErrorCategory.AGENT_ERROR,
        )
    return Failure(
        _text(error) or f"{who} raised {kind} without a message; give it one that says what failed", categorized(error)
    )


def deadline_failure(who: str, limit_sec: float, *, queued_sec: float = 0.0) -> Failure:
    """The failure for a deadline of ours; names how much of it went by in the queue, from 0.1 s on."""
    message = f"{who} exceeded its {float(limit_sec)}s deadline"
    if queued_sec >= 0.1:
        message += f" ({queued_sec:.1f}s of it queued)"
    return Failure(message, RolloutErrorCategory.TIMEOUT)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:  # a user's __str__ may fail; that must not hide the failure it describes
        return f"{type(error).__name__}, whose __str__ raised {type(broken).__name__}"
    if isinstance(error, BaseExceptionGroup):
        members = "; ".join(_called(member) for member in error.exceptions[:_GROUP_MEMBERS_SHOWN])
        more = len(error.exceptions) - _GROUP_MEMBERS_SHOWN
        return f"{text}: {members}" + (f"; and {more} more" if more > 0 else "")
    return text


def _called(error: BaseException) -> str:
    """``SystemExit(3)``, or just the type where there is no text."""
    text = _text(error)
    return f"{type(error).__name__}({text})" if text else type(error).__name__
