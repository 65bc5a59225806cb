"""HTTP proxies that the environment names (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY), as other clients use them."""

from __future__ import annotations

import asyncio
import base64
import ssl
import urllib.request
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from .connection import BrokenError, Connection, Headers


class Proxy(Struct, frozen=True):
    """A proxy and what it wants to hear."""

    host: str
    port: int
    headers: Headers

    async def connect(self, host: str, port: int, *, tls: ssl.SSLContext | None) -> Connection:
        """A connection for requests to `host`: with `tls` through a tunnel, else to the proxy, which passes them on.

        Raises:
            OSError, BrokenError: there is none.
        """
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self.host, self.port)
        if tls is None:
            return connection
        try:
            name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            lines = [f"CONNECT {name} HTTP/1.1".encode(), f"host: {name}".encode()]
            lines += [b"%b: %b" % header for header in self.headers]
            connection.send(b"\r\n".join([*lines, b"", b""]))
            await connection.head(None)
            if connection.status != 200:
                raise BrokenError(f"the proxy refuses with HTTP {connection.status}")
            assert connection.transport is not None
            tunnelled = Connection()
            transport = await loop.start_tls(connection.transport, tunnelled, tls, server_hostname=host)
            assert transport is not None
            tunnelled.connection_made(transport)
            return tunnelled
        except BaseException:
            connection.abort()
            raise


def proxy_for(url: str) -> Proxy | None:
    """The proxy for a URL; None for none.

    Raises:
        ValueError: it is of a kind that we do not speak, or has no port that can be.
    """
    proxies = urllib.request.getproxies()
    if not proxies:
        return None
    parts = urlsplit(url)
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ValueError(f"the environment names a proxy of the kind {proxy.scheme}; only http proxies are used")
    try:
        port = proxy.port or 80
    except ValueError:  # its text shows a piece of the URL, which may be one of a password
        raise ValueError("the environment names a proxy whose port is no number") from None
    headers: Headers = []
    if proxy.username is not None:
        userinfo = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        headers.append((b"proxy-authorization", b"Basic " + base64.b64encode(userinfo)))
    return Proxy(proxy.hostname, port, headers)
