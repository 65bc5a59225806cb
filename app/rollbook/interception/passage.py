"""What is no model call, as a list of models: passed on in both directions, recorded nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from . import answers
from .answers import ErrorAnswer, Headers
from .relay import Head, Relay
from .route import Route
from .upstream import Upstream, UpstreamError


class Passage:
    """One request and its answer; it ends when its program hangs up."""

    def __init__(
        self, method: str, url: str, *, headers: Headers, body: bytes, route: Route, upstream: Upstream
    ) -> None:
        self.relay = Relay(on_empty=self._left, on_joined=lambda: None)
        self.task: asyncio.Task[None] | None = None
        self._method = method
        self._url = url
        self._headers = headers
        self._body = body
        self._route = route
        self._upstream = upstream

    def start(self, *, on_done: Callable[[Passage], None]) -> None:
        """Begin; `on_done` is called once nothing runs any more."""
        self.task = asyncio.get_running_loop().create_task(self._run(), name="passage")
        self.task.add_done_callback(lambda _: self._done(on_done))

    def stop(self, reason: str) -> None:
        """End it now."""
        if self.task is not None:
            self.task.cancel(reason)

    def _left(self) -> None:
        if not self.relay.ended:
            self.stop("the program hung up")

    def _done(self, on_done: Callable[[Passage], None]) -> None:
        if not self.relay.ended:  # it was cancelled before its first step
            self._give_up(answers.over())
        on_done(self)

    async def _run(self) -> None:
        content_type = answers.value_of(self._headers, b"content-type")
        headers = answers.headers_upstream(self._headers, route=self._route, content_type=content_type)
        silence = self._route.read_timeout_sec
        try:
            async with self._upstream.send(
                self._method, self._url, headers=headers, body=self._body, read_timeout_sec=silence
            ) as answer:
                if answers.is_good(answer):
                    self.relay.start(Head(answer.status, answers.headers_downstream(answer.headers)))
                    async for chunk in answer.chunks():
                        self.relay.write(chunk)
                        await self.relay.room()
                    self.relay.end()
                else:
                    self.relay.answer(answer.status, *await answers.error_of(answer, route=self._route))
        except UpstreamError as error:
            status = 504 if error.kind == "timeout" else 502
            self._give_up(ErrorAnswer(status, self._route.hide(error.message), f"upstream_{error.kind}"))
        except asyncio.CancelledError:
            self._give_up(answers.over())

    def _give_up(self, answer: ErrorAnswer) -> None:
        if self.relay.head is None:
            self.relay.answer(answer.status, [answers.JSON_TYPE], answer.body())
        else:
            self.relay.end(broken=True)
