"""Request bodies: read within a limit, parsed as JSON, converted to a message; what is wrong is said field by field."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from litestar.types import HTTPScope, Receive

from rollbook.ledger import codec

from .errors import BODY_IS_NO_JSON, ApiError, ClientGoneError, FieldError, wrong_shape

MAX_DEPTH = 1_000
"""How deep arrays and objects of a body may nest; the parsers' own limits lie a little above."""

_MAX_REASON_CHARACTERS = 200
_TOO_DEEP = f"the body nests deeper than {MAX_DEPTH:,} levels; flatten it"
_WHERE = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_MISSING = re.compile(r"missing required field `(\w+)`")


async def read_body(scope: HTTPScope, receive: Receive, *, limit_bytes: int) -> bytes:
    """The whole body, which may be over the limit but not over twice the limit.

    A body somewhat over the limit is read all the same, so that what is wrong with its content is told first.

    Raises:
        ApiError: 413, where it is longer than twice the limit; the rest is left unread.
        ClientGoneError: the client went away.
    """
    body, more = await _next_part(receive)
    declared_bytes = _declared_bytes(scope) if more else 0
    parts = [body]
    read_bytes = len(body)
    while True:
        if max(declared_bytes, read_bytes) > 2 * limit_bytes:
            raise too_large(limit_bytes)
        if not more:
            return body if len(parts) == 1 else b"".join(parts)
        body, more = await _next_part(receive)
        parts.append(body)
        read_bytes += len(body)


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGoneError
    return message.get("body", b""), message.get("more_body", False)


def _declared_bytes(scope: HTTPScope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


def too_large(limit_bytes: int) -> ApiError:
    """A 413."""
    return ApiError(413, f"the body is over this server's limit of {limit_bytes} bytes; send less")


def parse(body: bytes) -> Any:
    """Any JSON document, with every number finite.

    Raises:
        ApiError: 400, the bytes are no JSON or nest too deep.
    """
    # Fewer brackets than levels cannot nest too deep, and counting them is much cheaper than measuring.
    deep = len(body) > MAX_DEPTH and body.count(b"[") + body.count(b"{") > MAX_DEPTH
    try:
        document = codec.loads(body)
    except codec.CodecError as error:
        if isinstance(error.__cause__, RecursionError):
            raise ApiError(400, _TOO_DEEP) from error
        # The parser names the place and at most quotes a number, which may be megabytes long.
        raise ApiError(400, f"{BODY_IS_NO_JSON}: {str(error)[:_MAX_REASON_CHARACTERS]}") from error
    if deep and _nests_too_deep(document):
        raise ApiError(400, _TOO_DEEP)
    return document


def _nests_too_deep(document: Any) -> bool:
    level = [document]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for value in level:
            if type(value) is dict:
                deeper.extend(part for part in value.values() if type(part) in (dict, list))
            elif type(value) is list:
                deeper.extend(part for part in value if type(part) in (dict, list))
        if not deeper:
            return False
        level = deeper
    return True


def convert[T](document: Any, kind: type[T], *, place: str = "body", strict: bool = True) -> T:
    """A parsed body (or whatever ``place`` names) as a message; not ``strict``: numbers may be written as text.

    Raises:
        ApiError: 422, naming the fields that are missing or wrong.
    """
    try:
        return msgspec.convert(document, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ApiError(422, _field_errors(document, kind, error, place=place)) from error
    except UnicodeEncodeError:
        return _convert_without_utf8(document, kind, place=place)


def _convert_without_utf8[T](document: Any, kind: type[T], *, place: str) -> T:
    """What msgspec stumbles over: a lone surrogate in an unknown field's name, or in a text where none should be."""
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if has_utf8(key)}
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ApiError(422, _field_errors(document, kind, error, place=place)) from error
    except UnicodeEncodeError:
        # With its surrogates replaced the text is still of the wrong type, and now msgspec can say where it stands.
        readable = json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
        convert(readable, kind, place=place)
        raise wrong_shape(place, msg="a text contains a lone surrogate and has no UTF-8 form") from None


def has_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8: not with lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _field_errors(
    document: Any, kind: type[Any], error: msgspec.ValidationError, *, place: str
) -> tuple[FieldError, ...]:
    text = str(error)
    if _MISSING.search(text) and isinstance(document, dict):
        missing = [
            field.encode_name
            for field in msgspec.structs.fields(kind)
            if field.required and field.encode_name not in document
        ]
        if missing:
            return tuple(FieldError((place, name), "this field is required", "missing") for name in missing)
    found = _WHERE.search(text)
    where = _steps(found[1]) if found else _named_field(kind, text)
    message = text[: found.start()] if found else text
    wrong_type = message.startswith("Expected ")
    return (FieldError((place, *where), message, "type_error" if wrong_type else "value_error"),)


def _steps(path: str) -> tuple[str | int, ...]:
    """`.initial_messages[1]` as steps; a step into an object of free keys has no name and is left out."""
    steps: list[str | int] = []
    for match in _STEP.finditer(path):
        if match[1] is not None:
            steps.append(match[1])
        elif match[2] is not None:
            steps.append(int(match[2]))
    return tuple(steps)


def _named_field(kind: type[Any], text: str) -> tuple[str, ...]:
    """The messages' own checks begin with the name of the field they are about."""
    name = text.split(" ", 1)[0]
    return (name,) if name in {field.encode_name for field in msgspec.structs.fields(kind)} else ()
