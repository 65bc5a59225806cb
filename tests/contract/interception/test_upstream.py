"""What the client of the model servers makes of answers, byte by byte: whose they are, where they end, what is kept."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rollbook.interception.connection import HEAD_MAX_BYTES
from rollbook.interception.upstream import Answer, Upstream, UpstreamError

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none"
OTHER = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntwo"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Raw:
    """Answers requests with bytes as they are, one after the other on whatever connection; then it hangs up."""

    def __init__(self, *answers: bytes) -> None:
        self.url = ""
        self.heads: list[bytes] = []
        self.connections = 0
        self.ended = asyncio.Event()
        """A connection is over, whoever closed it."""
        self._answers = list(answers)
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Upstream]:
        """Serve, and give what calls it."""
        upstream = Upstream()
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            try:
                yield upstream
            finally:
                await upstream.close()

    def push(self, data: bytes) -> None:
        """Say something on the newest connection that nobody asked for."""
        self._writers[-1].write(data)

    async def over(self) -> None:
        """Wait for the end of a connection."""
        async with asyncio.timeout(10):
            await self.ended.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while self._answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length is not None else 0)
                self.heads.append(head)
                writer.write(answer := self._answers.pop(0))
                await writer.drain()
                if not answer.endswith((b"one", b"two")):
                    break
            else:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client hung up, which is what some tests wait for
        finally:
            writer.close()
            self.ended.set()


@asynccontextmanager
async def sent(
    upstream: Upstream, url: str, *, headers: list[tuple[bytes, bytes]] | None = None
) -> AsyncIterator[Answer]:
    async with upstream.send("POST", url, headers=headers or [], body=b"{}", read_timeout_sec=10) as answer:
        yield answer


async def said(upstream: Upstream, url: str) -> bytes:
    async with sent(upstream, url) as answer:
        return b"".join([chunk async for chunk in answer.chunks()])


async def failure(upstream: Upstream, url: str) -> UpstreamError:
    with pytest.raises(UpstreamError) as failed:
        await said(upstream, url)
    return failed.value


async def test_answer_that_nobody_asked_for_is_nobodys() -> None:
    server, another = Raw(WHOLE, OTHER), Raw(WHOLE)
    async with another.listening(), server.listening() as upstream:
        assert await said(upstream, server.url) == b"one"
        server.push(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 6\r\n\r\nnobody")
        await said(upstream, another.url)  # meanwhile the client has heard it
        assert await said(upstream, server.url) == b"two"
    assert server.connections == 2


async def test_second_answer_to_one_request_belongs_to_neither_call() -> None:
    server = Raw(WHOLE + WHOLE, OTHER)
    async with server.listening() as upstream:
        assert await said(upstream, server.url) == b"one"
        assert await said(upstream, server.url) == b"two"
    assert server.connections == 2


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 20", b"HTTP/1.1 102 Processing\r\n\r\n"], ids=["head", "interim"])
async def test_request_of_whose_answer_something_came_is_not_sent_again(beginning: bytes) -> None:
    server = Raw(WHOLE, beginning, OTHER)
    async with server.listening() as upstream:
        assert await said(upstream, server.url) == b"one"
        error = await failure(upstream, server.url)
    assert error.kind == "connect"
    assert len(server.heads) == 2


async def test_request_on_a_kept_connection_that_ends_without_a_byte_is_sent_again() -> None:
    server = Raw(WHOLE, b"", OTHER)
    async with server.listening() as upstream:
        assert await said(upstream, server.url) == b"one"
        assert await said(upstream, server.url) == b"two"
    assert len(server.heads) == 3


async def test_request_on_a_new_connection_that_ends_without_a_byte_is_not_sent_again() -> None:
    server = Raw(b"", OTHER)
    async with server.listening() as upstream:
        error = await failure(upstream, server.url)
    assert error.kind == "connect"
    assert len(server.heads) == 1


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsix of", CHUNKED + b"3\r\nsix\r\n3\r\n of\r\n"],
    ids=["length", "chunks"],
)
async def test_what_came_before_a_break_is_had_by_whoever_reads_late(answer: bytes) -> None:
    server, another = Raw(answer), Raw(WHOLE)
    got = bytearray()

    async def read(late: Answer) -> None:
        async for chunk in late.chunks():
            got.extend(chunk)

    async with another.listening(), server.listening() as upstream, sent(upstream, server.url) as late:
        await server.over()
        await said(upstream, another.url)  # meanwhile the client has noticed that the first server is gone
        with pytest.raises(UpstreamError) as failed:
            await read(late)
    assert got == b"six of"
    assert failed.value.kind == "broken_stream"


async def test_body_without_framing_ends_with_its_connection() -> None:
    server = Raw(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    async with server.listening() as upstream:
        assert await said(upstream, server.url) == b"all of it"


async def test_headers_pass_byte_by_byte_in_both_directions() -> None:
    server = Raw(b"HTTP/1.1 200 OK\r\nX-Said: \xe9\r\nx-said: again\r\ncontent-length: 3\r\n\r\none")
    headers = [(b"x-twice", b"1"), (b"x-latin", b"\xe9"), (b"x-twice", b"2"), (b"x-utf", "é".encode())]
    async with server.listening() as upstream, sent(upstream, server.url, headers=headers) as answer:
        assert [value for name, value in answer.headers if name == b"x-said"] == [b"\xe9", b"again"]
    given = [line for line in server.heads[0].split(b"\r\n") if line.startswith(b"x-")]
    assert given == [b"x-twice: 1", b"x-latin: \xe9", b"x-twice: 2", b"x-utf: \xc3\xa9"]


async def test_url_passes_as_it_is_but_for_what_no_request_can_hold() -> None:
    server = Raw(WHOLE)
    async with server.listening() as upstream:
        await said(upstream, f"{server.url}/%7Ea%2fb/../é x?q=a%20b+c&q=%zz&e=é")
    assert server.heads[0].startswith(b"POST /v1/%7Ea%2fb/../%C3%A9%20x?q=a%20b+c&q=%zz&e=%C3%A9 HTTP/1.1\r\n")


async def test_head_without_an_end_is_an_error() -> None:
    server = Raw(b"HTTP/1.1 200 OK\r\n" + b"x-more: %b\r\n" % (b"." * 1000) * (HEAD_MAX_BYTES // 1000 + 1))
    async with server.listening() as upstream:
        error = await failure(upstream, server.url)
    assert error.kind == "connect"
    assert str(HEAD_MAX_BYTES) in error.message


@pytest.mark.parametrize("host", ["secret:99999", "secret:port", "sécret..secret"])
async def test_url_that_leads_nowhere_is_an_error_that_does_not_show_it(host: str) -> None:
    error = await failure(Upstream(), f"http://{host}/secret")
    assert error.kind == "connect"
    assert "port" in error.message
    assert "cret" not in error.message


async def test_proxy_without_a_port_that_can_be_is_an_error_that_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:pass/word@127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    error = await failure(Upstream(), "http://127.0.0.1:1/v1")
    assert error.kind == "connect"
    assert "pass" not in error.message
