"""One rollout's door: its secret, its calls in flight, and the end of all of them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from functools import partial

from .answers import Headers
from .call import Call, Incoming
from .dialects import mcp
from .messages import CallPolicy
from .passage import Passage
from .relay import Relay
from .retries import Retries
from .route import Route
from .tool_calls import ToolExchange, ToolServer
from .tools import ToolDesk
from .upstream import Upstream

log = logging.getLogger(__name__)

COMMIT_SEC = 10.0
"""How long turns that are being committed may take when the session closes."""
END_SEC = 15.0
"""How long what was cancelled after that may take to end."""


class Session:
    """Made by `Endpoint.open`; what a program needs to reach the model as this rollout."""

    def __init__(
        self,
        secret: str,
        *,
        port: int,
        route: Route,
        policy: CallPolicy,
        tools: ToolDesk | None,
        upstream: Upstream,
        orphan_sec: float,
        on_close: Callable[[Session], None],
    ) -> None:
        self.secret = secret
        """Opens this session, in the path or as ``Authorization: Bearer``."""
        self.chat_url = f"http://127.0.0.1:{port}/s/{secret}"
        """Stands for the rollout's own URL: what a client appends here is appended there."""
        self.base_url = f"{self.chat_url}/v1"
        """For ``OPENAI_BASE_URL``."""
        self.tools = None if tools is None else ToolServer(tools)
        """What serves the rollout's tools, if it has any."""
        self.tools_url = None if tools is None else f"{self.chat_url}{mcp.PATH}"
        """Where programs find them."""
        self.route = route
        self.closed = False
        self._policy = policy
        self._upstream = upstream
        self._orphan_sec = orphan_sec
        self._on_close = on_close
        # Requests come on connections that know nothing of rollouts; hooks and tools are to see their own.
        self._context = contextvars.copy_context()
        self._retries = Retries()
        self._running: set[Call | Passage | ToolExchange] = set()

    @property
    def waiting(self) -> int:
        """How many programs wait for answers now."""
        return sum(work.relay.readers for work in self._running)

    def call(self, incoming: Incoming) -> Relay:
        """The answer to a program's request: of a call that begins now, or of the one that it repeats."""
        call = self._retries.find(incoming)
        if call is None:
            call = Call(
                incoming,
                route=self.route,
                policy=self._policy,
                upstream=self._upstream,
                orphan_sec=self._orphan_sec,
            )
            self._retries.add(call)
            self._begin(call, partial(call.start, on_done=self._call_done))
        return call.relay

    def passage(self, method: str, url: str, *, headers: Headers, body: bytes) -> Relay:
        """The answer to what is no model call."""
        passage = Passage(method, url, headers=headers, body=body, route=self.route, upstream=self._upstream)
        self._begin(passage, partial(passage.start, on_done=self._running.discard))
        return passage.relay

    def use_tools(self, tools: ToolServer, method: str, *, headers: Headers, body: bytes) -> Relay:
        """The answer to what concerns the rollout's tools."""
        exchange = ToolExchange(tools, method, headers=headers, body=body)
        self._begin(exchange, partial(exchange.start, on_done=self._running.discard))
        return exchange.relay

    async def close(self) -> None:
        """End all work upstream now, record what was in flight as aborted, and answer later calls with 410.

        Tools that are running are cancelled. Turns that are being committed have 10 s to finish. Repeating it is
        harmless. Once it has begun it needs no caller: what it ended stays ended if it is cancelled.
        """
        if not self.closed:
            self.closed = True
            self._on_close(self)
            self._retries.clear()
            for work in self._running:
                work.stop("the rollout is over")
        tasks = {work.task for work in self._running if work.task is not None}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=COMMIT_SEC)
        for task in late:
            task.cancel()
        if late:
            log.warning("%d calls had not come to their end after %g s and were cancelled", len(late), COMMIT_SEC)
            _, deaf = await asyncio.wait(late, timeout=END_SEC)
            if deaf:
                log.error("%d calls have not ended since; they are left behind", len(deaf))

    def _begin(self, work: Call | Passage | ToolExchange, start: Callable[[], None]) -> None:
        self._running.add(work)
        self._context.copy().run(start)

    def _call_done(self, call: Call) -> None:
        self._running.discard(call)
        if not self.closed:
            self._retries.ended(call)
