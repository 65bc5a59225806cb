"""The way to the models: connections that all sessions share, one exchange at a time on each.

There is no bound on connections: each belongs to a call of a rollout, and those are bounded. An exchange that is
left before its end closes its connection, so a cancelled call can take no place away from others.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import zlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakSet

import httpx
from msgspec import Struct

from .connection import BrokenError, Connection, Headers
from .proxies import Proxy, proxy_for

CONNECT_TIMEOUT_SEC = 30.0
IDLE_SEC = 4.0
"""How long a connection is kept for the next call: less than the 5 s after which many servers close it."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SAFE = "/%:@!$&'()*+,;=~-._"
"""What is left as it is in a path or a query."""
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class UpstreamError(Exception):
    """An exchange did not come to its end; `kind` is one of `CallError`'s: connect, timeout or broken_stream.

    The message names no URL, which may be a secret.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Origin(Struct, frozen=True):
    """Whom a connection leads to."""

    scheme: str
    host: str
    port: int


class Answer:
    """An upstream's answer whose body is still on its way."""

    def __init__(self, connection: Connection, timeout_sec: float | None) -> None:
        self.status = connection.status
        self.headers: Headers = connection.headers
        self._connection = connection
        self._timeout_sec = timeout_sec
        self._decoder: Any = None
        if self.header("content-encoding").lower() in ("gzip", "x-gzip", "deflate"):  # although we asked for identity
            self._decoder = zlib.decompressobj(wbits=47)
            self.headers = [(name, value) for name, value in self.headers if name != b"content-encoding"]

    def header(self, name: str) -> str:
        """A header's value; empty where it is absent."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), "")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, decoded where it was compressed.

        Raises:
            UpstreamError: it ended before its end.
        """
        try:
            while data := await self._connection.read(self._timeout_sec):
                yield data if self._decoder is None else self._decoder.decompress(data)
        except BrokenError as error:
            raise UpstreamError("broken_stream", str(error)) from error
        except TimeoutError as error:
            raise _silent(self._timeout_sec) from error
        except zlib.error as error:
            raise UpstreamError("broken_stream", "the model server's answer is compressed and damaged") from error


class Upstream:
    """Sends requests, on connections that wait or on new ones."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: WeakSet[Connection] = WeakSet()
        self._proxies: dict[Origin, Proxy | None] = {}
        self._tls: ssl.SSLContext | None = None

    @contextlib.asynccontextmanager
    async def send(
        self, method: str, url: str, *, headers: Headers, body: bytes, read_timeout_sec: float | None
    ) -> AsyncIterator[Answer]:
        """Send a request and give its answer once the head is there; leaving the context ends the exchange.

        `read_timeout_sec` bounds the silence between two pieces of the answer; None waits for ever.

        Raises:
            UpstreamError: no connection, no answer in time, or none that is HTTP.
        """
        origin = _origin(url)
        proxy = self._proxy(origin, url)
        request = _request(method, url, origin=origin, headers=headers, body=body, proxy=proxy)
        with_body = method != "HEAD"
        connection = await self._answering(
            origin, proxy, request=request, with_body=with_body, timeout_sec=read_timeout_sec
        )
        try:
            yield Answer(connection, read_timeout_sec)
        finally:
            self._give_back(origin, connection)

    async def close(self) -> None:
        """Close every connection; exchanges must have ended."""
        self._idle.clear()
        connections = list(self._open)
        for connection in connections:
            _forget_timer(connection)
            connection.abort()
        for connection in connections:
            await connection.closed()

    async def _answering(
        self, origin: Origin, proxy: Proxy | None, *, request: bytes, with_body: bool, timeout_sec: float | None
    ) -> Connection:
        """A connection on which the request was sent and the answer's head has come."""
        while True:
            connection = self._take(origin) or await self._connect(origin, proxy)
            self._open.add(connection)
            try:
                connection.send(request, with_body=with_body)
                await connection.head(timeout_sec)
            except BrokenError as error:
                connection.abort()
                if connection.used and not connection.heard:
                    continue  # the server closed it for having waited, just as we wrote: it has not seen the request
                raise UpstreamError("connect", str(error)) from error
            except TimeoutError as error:
                connection.abort()
                raise _silent(timeout_sec) from error
            except BaseException:
                connection.abort()
                raise
            return connection

    def _take(self, origin: Origin) -> Connection | None:
        waiting = self._idle.get(origin, [])
        while waiting:
            connection = waiting.pop()
            _forget_timer(connection)
            if connection.reusable:
                return connection
        return None

    def _give_back(self, origin: Origin, connection: Connection) -> None:
        if not connection.reusable:
            connection.abort()
            return
        connection.used = True
        waiting = self._idle.setdefault(origin, [])
        waiting.append(connection)
        loop = asyncio.get_running_loop()
        connection.idle_timer = loop.call_later(IDLE_SEC, self._expire, waiting, connection)

    def _expire(self, waiting: list[Connection], connection: Connection) -> None:
        connection.idle_timer = None
        if connection in waiting:
            waiting.remove(connection)
        connection.abort()

    async def _connect(self, origin: Origin, proxy: Proxy | None) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SEC):
                if proxy is not None:
                    tls = self._tls_context() if origin.scheme == "https" else None
                    return await proxy.connect(origin.host, origin.port, tls=tls)
                if origin.scheme == "https":
                    _, connection = await loop.create_connection(
                        Connection, origin.host, origin.port, ssl=self._tls_context(), server_hostname=origin.host
                    )
                else:
                    _, connection = await loop.create_connection(Connection, origin.host, origin.port)
                return connection
        except TimeoutError as error:
            raise UpstreamError("connect", f"no connection within {CONNECT_TIMEOUT_SEC:g} s") from error
        except (OSError, BrokenError, UnicodeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UpstreamError("connect", f"cannot connect to the model server: {reason}") from error

    def _proxy(self, origin: Origin, url: str) -> Proxy | None:
        if origin not in self._proxies:
            try:
                self._proxies[origin] = proxy_for(url)
            except ValueError as error:
                raise UpstreamError("connect", str(error)) from error
        return self._proxies[origin]

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx.create_ssl_context()  # trusts whom httpx and the clients built on it trust
        return self._tls


def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        ascii_host = host if host.isascii() else host.encode("idna").decode()
        return Origin(parts.scheme, ascii_host, parts.port or _DEFAULT_PORTS[parts.scheme])
    except ValueError as error:  # its text shows a piece of the URL
        raise UpstreamError("connect", "the model server's URL has an impossible host or port") from error


def _request(method: str, url: str, *, origin: Origin, headers: Headers, body: bytes, proxy: Proxy | None) -> bytes:
    """The bytes of a request."""
    parts = urlsplit(url)
    netloc = parts.netloc.rpartition("@")[2]
    host = netloc.encode() if netloc.isascii() else f"{origin.host}:{origin.port}".encode()
    target = quote(parts.path or "/", safe=_SAFE).encode()
    if parts.query:
        target += b"?" + quote(parts.query, safe=_SAFE + "?").encode()
    own: Headers = [(b"host", host)]
    if proxy is not None and parts.scheme == "http":
        target = b"http://" + host + target
        own += proxy.headers
    if parts.username is not None and not any(name == b"authorization" for name, _ in headers):
        userinfo = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        own.append((b"authorization", b"Basic " + base64.b64encode(userinfo)))
    if body or method not in _WITHOUT_BODY:
        own.append((b"content-length", b"%d" % len(body)))
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target), *(b"%b: %b" % header for header in (*own, *headers))]
    return b"\r\n".join([*lines, b"", body])


def _silent(timeout_sec: float | None) -> UpstreamError:
    return UpstreamError("timeout", f"the model server was silent for {timeout_sec:g} s")


def _forget_timer(connection: Connection) -> None:
    if connection.idle_timer is not None:
        connection.idle_timer.cancel()
        connection.idle_timer = None
