"""The key's gate, as ASGI."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rollbook.server.auth import KeyGate


async def passes(key: str, headers: list[tuple[bytes, bytes]], *, kind: str = "http") -> tuple[bool, list[Any]]:
    """Whether the gate let a request through, and what it sent itself."""
    seen: list[Any] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    async def send(message: Any) -> None:
        sent.append(message)

    await KeyGate(cast(Any, app), key)(cast(Any, {"type": kind, "headers": headers}), cast(Any, None), send)
    return bool(seen), sent


async def test_exact_key_passes_and_nothing_is_sent() -> None:
    assert await passes("key", [(b"host", b"api"), (b"authorization", b"Bearer key")]) == (True, [])


async def test_key_beyond_ascii_is_compared_as_utf8() -> None:
    assert (await passes("clé", [(b"authorization", "Bearer clé".encode())]))[0]


@pytest.mark.parametrize("value", [b"", b"key", b"bearer key", b"Bearer key ", b"Bearer", b"Bearer ke", b"\xff\xfe"])
async def test_anything_else_is_refused(value: bytes) -> None:
    passed, sent = await passes("key", [(b"authorization", value)])
    assert not passed
    assert sent[0]["status"] == 401
    assert sent[1]["body"] == b'{"detail":"unauthorized"}'


async def test_first_of_several_headers_counts() -> None:
    assert not (await passes("key", [(b"authorization", b"x"), (b"authorization", b"Bearer key")]))[0]


async def test_web_socket_without_the_key_is_closed_unopened() -> None:
    passed, sent = await passes("key", [], kind="websocket")
    assert not passed
    assert [message["type"] for message in sent] == ["websocket.close"]
