"""The endpoint of a runner process: one port, many sessions, shared connections to the models."""

from __future__ import annotations

import asyncio
import contextvars
import secrets
from collections import OrderedDict
from weakref import WeakKeyDictionary

from .app import App
from .messages import CallPolicy
from .route import Route
from .server import HttpServer
from .session import Session
from .tools import ToolDesk
from .upstream import Upstream

ORPHAN_SEC = 30.0
"""How long a call goes on for a program that hung up, so that its retry finds it."""

_SECRET_BYTES = 32
_CLOSED_MAX = 4096
"""Closed sessions that are remembered, so that their programs hear 410 and not 401."""


class Endpoint:
    """Serves model calls on 127.0.0.1, on the loop that starts it."""

    def __init__(self, *, orphan_sec: float = ORPHAN_SEC) -> None:
        self._orphan_sec = orphan_sec
        self._upstream = Upstream()
        self._server = HttpServer(App(self))
        self._open: dict[str, Session] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._running = False

    @property
    def port(self) -> int:
        """Where it listens; 0 before `start`."""
        return self._server.port

    @property
    def running(self) -> bool:
        """Whether it can take sessions."""
        return self._running

    async def start(self) -> None:
        """Listen on a free port.

        Raises:
            OSError: no port is free.
        """
        await self._server.start()
        self._running = True

    async def close(self) -> None:
        """Close every session, then every connection. Repeating it is harmless."""
        self._running = False
        await asyncio.gather(*(session.close() for session in list(self._open.values())))
        await self._server.close()
        await self._upstream.close()

    def open(
        self,
        url: str,
        api_key: str | None,
        policy: CallPolicy,
        *,
        read_timeout_sec: float | None = None,
        transparent: bool = False,
        tools: ToolDesk | None = None,
    ) -> Session:
        """A session for a rollout whose calls go to `url` with `api_key` and are decided about by `policy`.

        `read_timeout_sec` bounds how long the model server may be silent within a call; None leaves that to the
        rollout's own deadlines. `transparent` is for programs that must notice nothing: credentials that are not the
        session's secret go upstream as they are, and so does a body that is no chat request. `tools` are served at the
        session's `tools_url`. Policy and tools are asked in the context of whoever opens the session.

        Raises:
            RouteError: `url` is no http or https URL, or `api_key` fits in no header.
            RuntimeError: the endpoint is not running.
        """
        if not self._running:
            raise RuntimeError("the endpoint is not running: await start() before opening sessions")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        session = Session(
            secret,
            port=self.port,
            route=Route(url, api_key, read_timeout_sec, secret if transparent else None),
            policy=policy,
            tools=tools,
            upstream=self._upstream,
            orphan_sec=self._orphan_sec,
            on_close=self._session_closed,
        )
        self._open[session.secret] = session
        return session

    def find(self, secret: str) -> Session | None:
        """The open session with this secret."""
        return self._open.get(secret)

    def was_closed(self, secret: str) -> bool:
        """Whether a session with this secret was closed lately."""
        return secret in self._closed

    def _session_closed(self, session: Session) -> None:
        self._open.pop(session.secret, None)
        self._closed[session.secret] = None
        if len(self._closed) > _CLOSED_MAX:
            self._closed.popitem(last=False)


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Endpoint]] = WeakKeyDictionary()


async def shared_endpoint() -> Endpoint:
    """The endpoint of the running loop, started when it is first asked for, and anew once it was closed."""
    loop = asyncio.get_running_loop()
    starting = _shared.get(loop)
    if starting is None or _is_spent(starting):
        # Connections inherit the context of who listens: that must not be the first rollout's.
        nobody = contextvars.Context()
        starting = _shared[loop] = loop.create_task(_started(), name="interception endpoint", context=nobody)
    # Shielded: who is cancelled while it starts leaves it to the others.
    return await asyncio.shield(starting)


async def close_shared_endpoint() -> None:
    """Close the running loop's endpoint if there is one."""
    starting = _shared.pop(asyncio.get_running_loop(), None)
    if starting is None:
        return
    await asyncio.wait([starting])  # which leaves it alone where the caller is cancelled: others wait for it too
    if not _is_spent(starting):
        await starting.result().close()


async def _started() -> Endpoint:
    endpoint = Endpoint()
    await endpoint.start()
    return endpoint


def _is_spent(starting: asyncio.Task[Endpoint]) -> bool:
    if not starting.done():
        return False
    return starting.cancelled() or starting.exception() is not None or not starting.result().running
