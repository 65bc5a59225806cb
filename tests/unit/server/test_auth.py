"""The keys' gate, as ASGI."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rollbook.server.auth import KeyGate

TRAINERS, OPERATORS = "trainer's key", "operator's key"
BOTH = {TRAINERS, OPERATORS}


async def passes(
    key: str | None,
    headers: list[tuple[bytes, bytes]],
    *,
    kind: str = "http",
    path: str = "/health",
    root_path: str = "",
    operator_key: str | None = None,
) -> tuple[bool, list[Any]]:
    """Whether the gate let a request through, and what it sent itself."""
    seen: list[Any] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    async def send(message: Any) -> None:
        sent.append(message)

    gate = KeyGate(cast(Any, app), key, operator_api_key=operator_key)
    scope = {"type": kind, "headers": headers, "path": path, "root_path": root_path}
    await gate(cast(Any, scope), cast(Any, None), send)
    return bool(seen), sent


async def openers(path: str, *, key: str | None = TRAINERS, operator_key: str | None = OPERATORS) -> set[str]:
    """Which of the two keys, and of none ("") open a path."""
    found = set()
    for given in ("", TRAINERS, OPERATORS):
        headers = [(b"authorization", f"Bearer {given}".encode())] if given else []
        if (await passes(key, headers, path=path, operator_key=operator_key))[0]:
            found.add(given)
    return found


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


OPERATORS_PATHS = ["/rollouts", "/events", "/metrics", "/rollout/r-1/events", "/rollout/result/events"]
TRAINERS_PATHS = ["/", "/rollout", "/rollout/cancel", "/rollout/r-1/result", "/rollout/events/result", "/nothing"]


@pytest.mark.parametrize("path", OPERATORS_PATHS)
async def test_operators_path_takes_only_the_operators_key(path: str) -> None:
    assert await openers(path) == {OPERATORS}


@pytest.mark.parametrize("path", ["/rollouts/", "//rollouts", "///rollouts//", "/rollout//r-1///events/", "events"])
async def test_other_spelling_of_an_operators_path_is_one_too(path: str) -> None:
    assert await openers(path) == {OPERATORS}


@pytest.mark.parametrize("path", [*TRAINERS_PATHS, "/rollout/events/status", "/events/rollout"])
async def test_trainers_path_takes_only_the_trainers_key(path: str) -> None:
    assert await openers(path) == {TRAINERS}


@pytest.mark.parametrize("path", ["/health", "/health/", "/schema", "/schema/openapi.json"])
async def test_either_key_opens_health_and_schema(path: str) -> None:
    assert await openers(path) == BOTH


@pytest.mark.parametrize("path", [*OPERATORS_PATHS, *TRAINERS_PATHS, "/health"])
async def test_without_an_operators_key_the_trainers_opens_everything(path: str) -> None:
    assert await openers(path, operator_key=None) == {TRAINERS}


@pytest.mark.parametrize("path", [*TRAINERS_PATHS, "/health"])
async def test_operators_key_alone_leaves_the_rest_open(path: str) -> None:
    assert await openers(path, key=None) == {"", *BOTH}


@pytest.mark.parametrize("path", OPERATORS_PATHS)
async def test_operators_key_alone_guards_the_operators_paths(path: str) -> None:
    assert await openers(path, key=None) == {OPERATORS}


@pytest.mark.parametrize(
    "path, root_path", [("/prefix/rollouts", "/prefix"), ("/prefixrollouts", "/prefix"), ("/a/a/rollouts", "/a")]
)
async def test_path_behind_a_mount_is_judged_as_it_is_routed(path: str, root_path: str) -> None:
    trainer = [(b"authorization", f"Bearer {TRAINERS}".encode())]
    passed, _ = await passes(TRAINERS, trainer, path=path, root_path=root_path, operator_key=OPERATORS)
    assert not passed
