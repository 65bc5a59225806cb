"""Every error the client raises of its own.

    RolloutError                        anything below, to catch them together
    ├── RolloutProtocolError            the server's answer is not one the protocol allows (also a RuntimeError)
    └── RolloutAdmissionTimeoutError    the admission did not end in time (also a TimeoutError)

Beside these, arguments that cannot be right are a `ValueError`, and a failed connection is the `httpx.TransportError`
it was. A rollout that failed is no error here: it is a result whose status says so.
"""

from __future__ import annotations

from typing import ClassVar


class RolloutError(Exception):
    """Anything that went wrong between the client and a rollout server."""

    code: ClassVar[str] = "rollout_error"


class RolloutProtocolError(RolloutError, RuntimeError):
    """The server answered something the protocol does not allow; `status_code` is the answer's HTTP status."""

    code: ClassVar[str] = "protocol_error"

    def __init__(self, message: str, *, status_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments survive pickling only like this, and trainers pass errors between processes.
        return (_protocol_error, (self.message, self.status_code))


class RolloutAdmissionTimeoutError(RolloutError, TimeoutError):
    """The admission was not answered in time; `may_have_been_admitted` says whether a request was under way.

    Where it is true the server may hold the rollout, or may have refused it: nothing is cancelled by id, since the
    lost answer may have been the refusal of an id that is somebody else's. An admitted rollout that nobody polls ends
    when its lease does.
    """

    code: ClassVar[str] = "admission_timeout"

    def __init__(self, message: str, *, rollout_id: str, may_have_been_admitted: bool) -> None:
        super().__init__(message)
        self.message = message
        self.rollout_id = rollout_id
        self.may_have_been_admitted = may_have_been_admitted

    def __reduce__(self) -> tuple[object, ...]:
        return (_admission_timeout_error, (self.message, self.rollout_id, self.may_have_been_admitted))


def _protocol_error(message: str, status_code: int) -> RolloutProtocolError:
    return RolloutProtocolError(message, status_code=status_code)


def _admission_timeout_error(
    message: str, rollout_id: str, may_have_been_admitted: bool
) -> RolloutAdmissionTimeoutError:
    return RolloutAdmissionTimeoutError(message, rollout_id=rollout_id, may_have_been_admitted=may_have_been_admitted)
