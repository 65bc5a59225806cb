"""Reads HTTP answers into messages, and refuses those the protocol does not allow. No I/O."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from rollbook_client.errors import RolloutProtocolError
from rollbook_client.jsons import loads_lenient
from rollbook_client.messages import CancelRolloutsResponse, RolloutInitResponse, RolloutResultResponse

_MAX_DETAIL_CHARACTERS = 200

_NEXT_STEPS = {
    401: "pass the server's key as RolloutClient(api_key=...)",
    403: "this lease token is not the rollout's; poll with the token its admission answered",
    404: "the server does not know this rollout or path; check the URL, and that it is the server that admitted it",
    409: "choose a new rollout_id for each attempt",
    413: "the request is over the server's size limit; send less, or raise the limit there",
    422: "the server refused the request's shape; correct the named fields",
    502: "a gateway could not reach the server; check that it runs",
    503: "the server cannot do this now; try again later",
    504: "a gateway gave up waiting; raise its timeout above the server's long-poll wait",
}
_REDIRECT_STEP = "redirects are not followed, so that the key goes nowhere else; pass the final URL to RolloutClient"


class _Reader[T]:
    """A decoder for one message type, built once."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, response: httpx.Response, *, route: str) -> T:
        body = response.content
        try:
            try:
                return self._decoder.decode(body)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                # Lone surrogates are JSON, yet msgspec refuses them: a sample must not be lost to that.
                return msgspec.convert(loads_lenient(body), self._kind)
        except (ValueError, RecursionError) as error:
            raise RolloutProtocolError(
                f"{route} answered {response.status_code} with a body that is no valid answer ({error}); "
                "check that the URL is a rollout server's and that its version fits this client",
                status_code=response.status_code,
            ) from error


def read_admission(response: httpx.Response, rollout_id: str) -> RolloutInitResponse:
    """The admission in a 202.

    Raises:
        RolloutProtocolError: another status, a bad body, another rollout's id, or a lease not longer than the wait.
    """
    route = "POST /rollout"
    _expect(response, 202, route=route)
    admission = _ADMISSIONS.read(response, route=route)
    _expect_id(response, admission.rollout_id, rollout_id=rollout_id, route=route)
    return admission


def read_result(response: httpx.Response, rollout_id: str) -> RolloutResultResponse:
    """The result in a 200.

    Raises:
        RolloutProtocolError: another status, a bad body, or another rollout's id.
    """
    route = f"GET /rollout/{rollout_id}/result"
    _expect(response, 200, route=route)
    result = _RESULTS.read(response, route=route)
    _expect_id(response, result.rollout_id, rollout_id=rollout_id, route=route)
    return result


def read_cancellation(response: httpx.Response) -> CancelRolloutsResponse:
    """The dispositions in a 200.

    Raises:
        RolloutProtocolError: another status or a bad body.
    """
    route = "POST /rollout/cancel"
    _expect(response, 200, route=route)
    return _CANCELLATIONS.read(response, route=route)


def read_health(response: httpx.Response) -> dict[str, Any]:
    """The health object in a 200, its backend's fields included as they are.

    Raises:
        RolloutProtocolError: another status, or a body that is no JSON object.
    """
    route = "GET /health"
    _expect(response, 200, route=route)
    return _HEALTH.read(response, route=route)


def _expect(response: httpx.Response, status_code: int, *, route: str) -> None:
    answered = response.status_code
    if answered == status_code:
        return
    step = _REDIRECT_STEP if 300 <= answered < 400 else _NEXT_STEPS.get(answered, "see the server's log")
    raise RolloutProtocolError(
        f"{route} answered {answered}{_detail(response)}, not {status_code}; {step}", status_code=answered
    )


def _expect_id(response: httpx.Response, answered: str, *, rollout_id: str, route: str) -> None:
    if answered != rollout_id:
        raise RolloutProtocolError(
            f"{route} answered for rollout {answered[:80]!r} instead of {rollout_id!r}; "
            "check what stands between this client and the server",
            status_code=response.status_code,
        )


def _detail(response: httpx.Response) -> str:
    """The server's own words, if short text: a validation's list may repeat what was sent, keys included."""
    try:
        body = msgspec.json.decode(response.content)
    except (ValueError, RecursionError):
        return ""
    detail = body.get("detail") if isinstance(body, dict) else None
    return f" ({detail[:_MAX_DETAIL_CHARACTERS]})" if isinstance(detail, str) and detail else ""


_ADMISSIONS = _Reader(RolloutInitResponse)
_RESULTS = _Reader(RolloutResultResponse)
_CANCELLATIONS = _Reader(CancelRolloutsResponse)
_HEALTH = _Reader(dict[str, Any])
