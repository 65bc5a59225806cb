"""Connections of an httpx client that the user passed: the pool is shared, so calls leave it only where it is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

# httpcore's trace events after which its own clean-up covers a cancellation. Between the others it suspends in places
# it does not clean up: waiting for a connection, locking a fresh one, putting an answered one away.
_SAFE_AFTER = frozenset(
    {
        "connect_tcp.started",
        "connect_unix_socket.started",
        "start_tls.started",
        "send_request_headers.started",
        "send_request_headers.complete",
        "send_request_body.started",
        "send_request_body.complete",
        "receive_response_headers.started",
        "receive_response_body.started",
    }
)


class BorrowedConnections:
    """Sends through a client that somebody else made, configured and closes.

    Each call runs in a task of its own. When its caller is cancelled the task is cancelled too, but only once
    httpcore's trace shows it at a place where the pool survives that; the caller does not wait for it. A transport that
    sends no trace events (a mock, an ASGI application) finishes its call unobserved.

    The pool's limit is the user's to choose: every rollout being polled holds a connection.
    """

    def __init__(self, http_client: httpx.AsyncClient) -> None:
        self._http_client = http_client
        self._abandoned: set[asyncio.Task[httpx.Response]] = set()

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
        call = _Call()
        task = asyncio.get_running_loop().create_task(
            self._http_client.request(
                method,
                url,
                headers=headers,
                content=content,
                timeout=self._http_client.timeout if timeout_sec is None else timeout_sec,
                follow_redirects=False,
                extensions={"trace": call.trace},
            )
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._abandoned.add(task)
                task.add_done_callback(self._forget)
                call.abandon(task)
            raise

    async def aclose(self) -> None:
        """Nothing to release: the client belongs to whoever passed it, and abandoned calls end by their timeouts."""

    def _forget(self, task: asyncio.Task[httpx.Response]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            # Nobody waits for this answer or error any more; asking for it keeps asyncio from reporting it as lost.
            task.exception()


class _Call:
    """Where one call stands in httpcore, and whether its caller has gone."""

    def __init__(self) -> None:
        self._safe = False
        self._is_abandoned = False

    async def trace(self, event: str, _info: dict[str, Any]) -> None:
        """httpcore's trace hook; event names look like `http11.send_request_headers.started`."""
        self._safe = event.partition(".")[2] in _SAFE_AFTER
        if self._is_abandoned and self._safe:
            raise asyncio.CancelledError

    def abandon(self, task: asyncio.Task[httpx.Response]) -> None:
        """Cancel the call's task here if that is safe, else when it next is."""
        self._is_abandoned = True
        if self._safe:
            task.cancel()
