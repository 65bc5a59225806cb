"""What the endpoint answers by itself, and which headers pass it in either direction."""

from __future__ import annotations

import logging

from msgspec import Struct, json

from .route import Route
from .upstream import Answer, UpstreamError

log = logging.getLogger(__name__)

type Headers = list[tuple[bytes, bytes]]

ERROR_MAX_BYTES = 1024 * 1024
JSON_TYPE = (b"content-type", b"application/json")

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_FRAMING = frozenset({b"content-length"})
"""What belongs to bytes as they were sent; each side has its own."""
_CREDENTIALS = frozenset({b"authorization", b"api-key", b"x-api-key", b"cookie", b"set-cookie"})
_OF_OUR_SIDE = frozenset({b"host", b"accept-encoding", b"content-encoding", b"expect", b"content-type"})

_NOT_UPSTREAM = _HOP_BY_HOP | _FRAMING | _CREDENTIALS | _OF_OUR_SIDE
_NOT_DOWNSTREAM = _HOP_BY_HOP | _FRAMING | _CREDENTIALS


class ErrorAnswer(Struct, frozen=True):
    """An error in OpenAI's form, which clients turn into their own exceptions."""

    status: int
    message: str
    type: str

    def body(self) -> bytes:
        """The JSON."""
        return json.encode({"error": {"message": self.message, "type": self.type}})


def over() -> ErrorAnswer:
    """For a session that is closed."""
    return ErrorAnswer(410, "this rollout is over: it takes no calls any more", "rollout_over")


def not_served(method: str) -> ErrorAnswer:
    """For what would go past the rollout's limits."""
    return ErrorAnswer(
        404,
        f"this {method} is not served here: a rollout's programs have POST …/chat/completions and GET …/models",
        "not_served",
    )


def refused(name: str) -> ErrorAnswer:
    """For a call that a limit or a hook does not allow."""
    return ErrorAnswer(400, f"rollout stopped: {name}", "rollout_stopped")


def headers_upstream(headers: Headers, *, route: Route, content_type: bytes | None) -> Headers:
    """A program's headers without its framing, with the rollout's key in place of its credentials.

    Where the route has a stand-in, the program's credentials are its own, and the key stands where that stood.
    """
    api_key, stand_in = route.api_key, route.stand_in
    if stand_in is None:
        kept = [(name, value) for name, value in headers if name not in _NOT_UPSTREAM]
    else:
        old, new = stand_in.encode(), (api_key or "").encode()
        kept = [(name, value.replace(old, new)) for name, value in headers if name not in _NOT_UPSTREAM - _CREDENTIALS]
        api_key = None
    kept.append((b"accept-encoding", b"identity"))
    if content_type is not None:
        kept.append((b"content-type", content_type))
    if api_key is not None:
        kept.append((b"authorization", b"Bearer " + api_key.encode()))
    return kept


def headers_downstream(headers: Headers) -> Headers:
    """An upstream's headers without its framing: ours is set by what is sent."""
    return [(lower, value) for name, value in headers if (lower := name.lower()) not in _NOT_DOWNSTREAM]


async def error_of(answer: Answer, *, route: Route) -> tuple[Headers, bytes]:
    """The headers and the body of an answer that is none to be had, without the rollout's key and URL.

    Of a body that is broken off, or over 1 MiB, it is what came until then.
    """
    headers = [(name, route.hide_in_body(value)) for name, value in headers_downstream(answer.headers)]
    body = bytearray()
    try:
        async for chunk in answer.chunks():
            body += chunk
            if len(body) > ERROR_MAX_BYTES:
                break
    except UpstreamError:
        log.debug("an error answer ended before its end; what came of it is passed on")
    return headers, route.hide_in_body(bytes(body))


def is_good(answer: Answer) -> bool:
    """Whether it passes as it is; all others go through `error_of`."""
    return 200 <= answer.status < 300


def value_of(headers: Headers, name: bytes) -> bytes | None:
    """A header's value; names are in lower case."""
    return next((value for key, value in headers if key == name), None)
