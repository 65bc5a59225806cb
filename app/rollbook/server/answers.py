"""Answers as bytes: JSON bodies with their length, sent in two ASGI messages."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.types import Send

from rollbook.ledger import codec

from .errors import ApiError, ErrorBody, Headers

_encoder = msgspec.json.Encoder()


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A status, a JSON body and headers beyond its type and length."""

    status: int
    body: bytes
    headers: Headers = ()


def json_bytes(value: Any) -> bytes:
    """JSON; texts that UTF-8 cannot express (lone surrogates) make the whole body ASCII with escapes."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return codec.ascii_json(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))).encode()


def error_answer(error: ApiError) -> Answer:
    """An error's status and body."""
    return Answer(error.status, json_bytes(ErrorBody(error.detail)), error.headers)


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a whole answer."""
    body = answer.body
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                *answer.headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})
