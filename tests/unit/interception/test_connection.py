"""How answers are cut out of what a connection carries, wherever its pieces end."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import Struct

from rollbook.interception.connection import BrokenError, Connection, Headers

PLAIN = b"HTTP/1.1 200 OK\r\nA: 1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;of=it\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
CHUNKED_HEADERS = [(b"transfer-encoding", b"chunked")]
NOT_HTTP = "the model server's answer is not HTTP"


class Wire(asyncio.Transport):
    """A transport that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nobody reads it."""

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


class Heard(Struct, frozen=True):
    status: int
    headers: Headers
    body: bytes
    reusable: bool = True


async def heard(*pieces: bytes, ends: bool, with_body: bool) -> Heard | str:
    """What comes of an answer in these pieces, after which the server hangs up if it `ends`; an error's text if one."""
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    connection.send(b"a request", with_body=with_body)
    for piece in pieces:
        if piece and not wire.aborted:
            connection.data_received(piece)
    if ends or wire.aborted:
        connection.connection_lost(None)
    body = b""
    try:
        await connection.head(10)
        while data := await connection.read(10):
            body += data
    except BrokenError as error:
        return str(error)
    return Heard(connection.status, connection.headers, body, connection.reusable)


@pytest.mark.parametrize(
    "answer, expected",
    [
        (PLAIN, Heard(200, [(b"a", b"1"), (b"content-length", b"5")], b"hello")),
        (CHUNKED, Heard(200, CHUNKED_HEADERS, b"hello!")),
        (CHUNKED[:-2] + b"Later: x\r\n\r\n", Heard(200, CHUNKED_HEADERS, b"hello!")),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + CHUNKED, Heard(200, CHUNKED_HEADERS, b"hello!")),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", Heard(204, [], b"")),
        (
            b"HTTP/1.1 304 As it was\r\nContent-Length: 7\r\n\r\n",
            Heard(304, [(b"content-length", b"7")], b""),
        ),
        (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            Heard(200, [(b"connection", b"close"), (b"content-length", b"2")], b"ok", reusable=False),
        ),
        (
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            Heard(200, [(b"content-length", b"2")], b"ok", reusable=False),
        ),
        (CHUNKED + CHUNKED, Heard(200, CHUNKED_HEADERS, b"hello!", reusable=False)),
        (CHUNKED + b"\0", Heard(200, CHUNKED_HEADERS, b"hello!", reusable=False)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nhello", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!", NOT_HTTP),
        (b"HTTP/1.1 101 Other\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\nhello", NOT_HTTP),
        (b"HTTP/2 200\r\n\r\n", NOT_HTTP),
    ],
)
async def test_answer_is_the_same_wherever_its_pieces_end(answer: bytes, expected: Heard | str) -> None:
    for cut in range(len(answer)):
        assert await heard(answer[:cut], answer[cut:], ends=False, with_body=True) == expected
    single = [answer[at : at + 1] for at in range(len(answer))]
    assert await heard(*single, ends=False, with_body=True) == expected


async def test_answer_without_framing_ends_with_the_connection() -> None:
    whole = await heard(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", ends=True, with_body=True)
    assert whole == Heard(200, [], b"hello", reusable=False)


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED])
async def test_answer_that_ends_anywhere_before_its_end_is_broken(answer: bytes) -> None:
    for cut in range(len(answer)):
        broken = await heard(answer[:cut], ends=True, with_body=True)
        assert isinstance(broken, str)
        assert "hung up" in broken


@pytest.mark.parametrize(
    "answer, headers", [(PLAIN, [(b"a", b"1"), (b"content-length", b"5")]), (CHUNKED, CHUNKED_HEADERS)]
)
async def test_answer_to_head_has_no_body_although_one_comes(answer: bytes, headers: Headers) -> None:
    for cut in range(answer.index(b"\r\n\r\n") + 4, len(answer) + 1):
        bodyless = await heard(answer[:cut], answer[cut:], ends=False, with_body=False)
        assert bodyless == Heard(200, headers, b"", reusable=False)
