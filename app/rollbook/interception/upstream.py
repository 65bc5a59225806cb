"""The way to the models: shared connections, one exchange at a time, and foreign errors turned into ours.

httpx's transports are used without its client, which logs URLs: they may be secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import httpx

type Headers = list[tuple[bytes, bytes]]

CONNECT_TIMEOUT_SEC = 30.0

# No bound on connections: each belongs to a call of a rollout, and those are bounded. Idle ones are closed.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=30)


class UpstreamError(Exception):
    """An exchange did not come to its end; `kind` is one of `CallError`'s: connect, timeout or broken_stream."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Answer:
    """An upstream's answer whose body is still on its way."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status: int = response.status_code
        self.headers: Headers = response.headers.raw

    def header(self, name: str) -> str:
        """A header's value; empty where it is absent."""
        value: str = self._response.headers.get(name, "")
        return value

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, decoded where it was compressed.

        Raises:
            UpstreamError: it ended before its end.
        """
        with _our_errors(answered=True):
            async for chunk in self._response.aiter_bytes():
                yield chunk


class Upstream:
    """Sends requests over connections that all sessions share."""

    def __init__(self) -> None:
        self._transports: dict[bytes, httpx.AsyncHTTPTransport] = {}

    @contextlib.asynccontextmanager
    async def send(
        self, method: str, url: str, *, headers: Headers, body: bytes, read_timeout_sec: float | None
    ) -> AsyncIterator[Answer]:
        """Send a request and give its answer once the head is there; leaving the context ends the exchange.

        `read_timeout_sec` bounds the silence between two pieces of the answer; None waits for ever.

        Raises:
            UpstreamError: no connection, no answer in time, or none that is HTTP.
        """
        with _our_errors(answered=False):
            request = httpx.Request(
                method,
                url,
                headers=headers,
                content=body,
                extensions={
                    "timeout": {
                        "connect": CONNECT_TIMEOUT_SEC,
                        "read": read_timeout_sec,
                        "write": read_timeout_sec,
                        "pool": None,
                    }
                },
            )
            response = await self._transport(request.url).handle_async_request(request)
        try:
            yield Answer(response)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close every connection; exchanges must have ended."""
        transports, self._transports = list(self._transports.values()), {}
        for transport in transports:
            await transport.aclose()

    def _transport(self, url: httpx.URL) -> httpx.AsyncHTTPTransport:
        transport = self._transports.get(url.netloc)
        if transport is None:
            proxy = _proxy_for(url)
            transport = httpx.AsyncHTTPTransport(proxy=proxy, limits=_LIMITS)
            self._transports[url.netloc] = transport
        return transport


def _proxy_for(url: httpx.URL) -> str | None:
    """The proxy that the environment names for a URL, by the rules of the standard library."""
    proxies = urllib.request.getproxies()
    if not proxies or urllib.request.proxy_bypass(url.netloc.decode()):
        return None
    return proxies.get(url.scheme) or proxies.get("all")


@contextlib.contextmanager
def _our_errors(*, answered: bool) -> Any:
    # Messages name no URL: it may hold a secret. httpx's own name none either, apart from those of bad URLs.
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise UpstreamError("connect", f"no connection within {CONNECT_TIMEOUT_SEC:g} s") from error
    except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
        raise UpstreamError("timeout", "the model server was silent for too long") from error
    except (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise UpstreamError("connect", f"cannot connect to the model server: {type(error).__name__} {error}") from error
    except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as error:
        when = "in the middle of its answer" if answered else "before it answered"
        raise UpstreamError("broken_stream" if answered else "connect", f"the model server hung up {when}") from error
    except asyncio.CancelledError:
        raise
