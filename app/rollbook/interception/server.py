"""uvicorn's HTTP protocol on a loop that runs already: no signal handlers, no process of its own, no log lines."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .app import CUT, App

KEEP_ALIVE_SEC = 2160
"""Longer than programs think between two calls, so that it is never our end that closes under a request."""
LAST_ANSWERS_SEC = 5.0
"""How long answers may take when the server closes; their calls have been ended before."""

HEAD_MAX_BYTES = 64 * 1024

_BACKLOG = 2048


class EndpointProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounded heads, a way to break off, and no access log: paths hold secrets."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.access_log = False
        self._head_bytes = 0
        self._progressed = False

    def data_received(self, data: bytes) -> None:
        """Parse; who sends a head without an end is cut off, since the parser gathers it."""
        self._progressed = False
        super().data_received(data)
        self._head_bytes = 0 if self._progressed else self._head_bytes + len(data)
        if self._head_bytes > HEAD_MAX_BYTES:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        """Give the application the connection's end."""
        self._progressed = True
        self.scope["extensions"] = {CUT: {"cut": self._cut}}
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Of httptools."""
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Of httptools."""
        self._progressed = True
        super().on_message_complete()

    def _cut(self, *, abort: bool) -> None:
        if abort:
            self.transport.abort()
        else:
            self.transport.close()


class HttpServer:
    """Serves an application on a port of 127.0.0.1 that the system chooses."""

    def __init__(self, app: App) -> None:
        self.port = 0
        self._state = ServerState()
        self._config = uvicorn.Config(
            app,
            http=EndpointProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,  # and no access_log=False either: that would silence a uvicorn of the host's own
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SEC,
        )
        self._config.load()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: no port is free.
        """
        # The protocol is named: asyncio sets TCP_NODELAY only on sockets that say that they are TCP.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.bind(("127.0.0.1", 0))
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol, sock=listener, backlog=_BACKLOG
            )
        except BaseException:
            listener.close()
            raise
        self.port = listener.getsockname()[1]

    async def close(self) -> None:
        """Stop listening, let answers end for a moment, and close every connection."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            if self._state.tasks:
                await asyncio.wait(set(self._state.tasks), timeout=LAST_ANSWERS_SEC)
        finally:
            for connection in list(self._state.connections):
                connection.transport.abort()
            for task in self._state.tasks:
                task.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), LAST_ANSWERS_SEC)

    def _protocol(self) -> Any:
        return EndpointProtocol(config=self._config, server_state=self._state, app_state={})
