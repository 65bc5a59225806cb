"""What a client sends before a request is complete is bounded, or one connection would stall all others."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from rollbook.server.process import MAX_HEAD_BYTES
from tests.contract.server.processes import ApiProcess, read_response, running
from tests.contract.server.support import LIMIT_SEC

FLOOD_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def process(shared_ledger: str) -> Iterator[ApiProcess]:
    with running(shared_ledger) as api:
        yield api


def flood(connection: socket.socket, head: bytes, part: bytes) -> int:
    """Send without an end; how many bytes were taken before the server closed the connection."""
    connection.settimeout(LIMIT_SEC)
    taken = 0
    try:
        connection.sendall(head)
        while taken < FLOOD_BYTES:
            connection.sendall(part)
            taken += len(part)
    except ConnectionError:
        return taken
    pytest.fail(f"the server took {taken} bytes of a head")


CHUNKED = b"POST /nowhere HTTP/1.1\r\nhost: api\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "part"),
    [
        pytest.param(b"GET /health?", b"a" * 65_536, id="request line"),
        pytest.param(b"GET /health HTTP/1.1\r\nhost: api\r\nx: ", b"a" * 65_536, id="header"),
        pytest.param(b"GET /health HTTP/1.1\r\nhost: api\r\n", b"x: y\r\n" * 10_000, id="headers"),
        pytest.param(CHUNKED + b"0\r\n", b"x: y\r\n" * 10_000, id="trailers"),
        pytest.param(CHUNKED + b"1;", b"a" * 65_536, id="chunk extension"),
        pytest.param(b"", b"\r\n" * 32_768, id="nothing at all"),
    ],
)
def test_endless_head_is_cut_off(process: ApiProcess, head: bytes, part: bytes) -> None:
    with process.connect() as connection:
        assert flood(connection, head, part) < FLOOD_BYTES // 4


def test_head_over_the_limit_is_answered_431(process: ApiProcess) -> None:
    start = b"GET /health HTTP/1.1\r\nhost: api\r\nx: "
    with process.connect() as connection:
        # Not a byte more: what is unread when a connection is closed can take the answer with it.
        connection.sendall(start + b"a" * (MAX_HEAD_BYTES + 1 - len(start)))
        status, _, body = read_response(connection)
    assert status == 431
    assert b"shorter headers" in body


def test_long_bodies_and_many_requests_are_no_heads(process: ApiProcess) -> None:
    body = b'{"ids": ["' + b"a" * 3_000_000 + b'"]}'
    head = b"POST /rollout/cancel HTTP/1.1\r\nhost: api\r\ncontent-length: %d\r\n\r\n" % len(body)
    with process.connect() as connection:
        for _ in range(3):
            connection.sendall(head + body)
            assert read_response(connection)[0] == 200
        for _ in range(200):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: api\r\nx: " + b"a" * 1_000 + b"\r\n\r\n")
            assert read_response(connection)[0] == 200
