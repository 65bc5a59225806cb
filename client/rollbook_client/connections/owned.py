"""Connections of the client's own: one lane per call under way, thrown away when its call does not end well."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections import deque
from collections.abc import Mapping
from http.cookiejar import CookieJar

import httpx

CONNECT_TIMEOUT_SEC = 5.0
# Longer than httpx's 5 s, for admissions of large prompts to a busy server; result polls bring their own.
DEFAULT_TIMEOUT_SEC = 30.0
# Below uvicorn's default keep-alive of 5 s: a connection the server is about to drop is not used again.
KEEPALIVE_SEC = 4.0


class OwnedConnections:
    """As many connections as calls under way, each behind a lane (an httpx client) of its own.

    A lane serves one call at a time. After an answered call it is used again, the most recent first; after any other
    end, cancellation included, it is closed. So a call never waits for a connection, its cost does not grow with the
    number of parked polls, and no call can harm another's connection.
    """

    def __init__(self) -> None:
        self._idle: deque[tuple[httpx.AsyncClient, float]] = deque()
        self._busy: set[httpx.AsyncClient] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._cookies = CookieJar()
        self._closed = False

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        timeout_sec: float | None = None,
    ) -> httpx.Response:
        """As `Connections.request` says."""
        lane = self._take()
        try:
            response = await lane.request(
                method,
                url,
                headers=headers,
                content=content,
                timeout=lane.timeout if timeout_sec is None else timeout_sec,
                follow_redirects=False,
            )
        except BaseException:
            self._busy.discard(lane)
            self._close_soon(lane)
            raise
        self._give_back(lane)
        return response

    async def aclose(self) -> None:
        """Close all connections; a call under way fails, and a later one is a `RuntimeError`."""
        self._closed = True
        for lane in self._busy:
            self._close_soon(lane)
        while self._idle:
            self._close_soon(self._idle.pop()[0])
        while self._closing:
            await asyncio.wait(self._closing)

    def _take(self) -> httpx.AsyncClient:
        if self._closed:
            raise RuntimeError("this RolloutClient is closed; make a new one, and close it after its last rollout")
        lane = self._idle.pop()[0] if self._idle else self._open()
        self._busy.add(lane)
        return lane

    def _open(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=_tls_context(),
            timeout=httpx.Timeout(DEFAULT_TIMEOUT_SEC, connect=CONNECT_TIMEOUT_SEC),
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_SEC),
            cookies=self._cookies,
        )

    def _give_back(self, lane: httpx.AsyncClient) -> None:
        self._busy.discard(lane)
        if self._closed:
            self._close_soon(lane)
            return
        now = asyncio.get_running_loop().time()
        self._idle.append((lane, now))
        while self._idle[0][1] + KEEPALIVE_SEC < now:
            self._close_soon(self._idle.popleft()[0])

    def _close_soon(self, lane: httpx.AsyncClient) -> None:
        # A task, so that a cancelled caller need not wait, and a second cancellation cannot interrupt the closing.
        task = asyncio.get_running_loop().create_task(lane.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    # Reading the certificates takes 20 ms: once per process, not once per lane.
    return httpx.create_ssl_context()
