"""Policies of tests: they keep what they were told, and decide as their test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from rollbook.interception import Request, Response
from rollbook.interception.session import Session
from rollbook.traces.calls import ModelCall

type Before = Callable[[Request], Request | Awaitable[Request]]
type Answered = Callable[[Response], Response | Awaitable[Response]]


class Recording:
    """Lets calls through unless it was given something else to do; remembers all of them."""

    def __init__(
        self, *, before: Before | None = None, answered: Answered | None = None, needs_whole_answer: bool = False
    ) -> None:
        self.needs_whole_answer = needs_whole_answer
        self.requests: list[Request] = []
        self.responses: list[Response] = []
        self.calls: list[ModelCall] = []
        """Of answers and of failures, in the order in which they were recorded."""
        self.failures: list[ModelCall] = []
        self.faults: list[str] = []
        self.left_calls: list[Request] = []
        """Of calls that programs hung up on and did not come back for."""
        self._before = before
        self._answered = answered
        self._changed = asyncio.Condition()

    async def before(self, request: Request) -> Request:
        self.requests.append(request)
        if self._before is None:
            return request
        decided = self._before(request)
        return await decided if isinstance(decided, Awaitable) else decided

    async def answered(self, request: Request, response: Response, call: ModelCall) -> Response:
        self.responses.append(response)
        self.calls.append(call)
        await self._tell()
        if self._answered is None:
            return response
        decided = self._answered(response)
        return await decided if isinstance(decided, Awaitable) else decided

    def left(self, request: Request, *, had_part: bool) -> Callable[[], None]:
        self.left_calls.append(request)
        return lambda: self.left_calls.remove(request)

    def broke(self, message: str) -> None:
        self.faults.append(message)

    def failed(self, request: Request, call: ModelCall) -> None:
        self.failures.append(call)
        self.calls.append(call)
        asyncio.ensure_future(self._tell())  # noqa: RUF006

    async def recorded(self, count: int) -> ModelCall:
        """The call of that number, once it is recorded."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: len(self.calls) >= count)
        return self.calls[count - 1]

    @property
    def failure(self) -> str:
        """The kind of the one failure."""
        (call,) = self.failures
        assert call.error is not None
        return call.error.kind

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def chat(text: str = "hello", *, streamed: bool = False, **fields: Any) -> dict[str, Any]:
    """A body."""
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
    return {**body, "stream": True} if streamed else body


async def ask(client: httpx.AsyncClient, base_url: str, text: str = "hello", **fields: Any) -> httpx.Response:
    """One chat completion."""
    return await client.post(f"{base_url}/chat/completions", json=chat(text, **fields))


async def until_waiting(session: Session, programs: int) -> None:
    """Wait until so many programs wait for the session's answers: they have come, or their hanging up was noticed."""
    for _ in range(100_000):
        if session.waiting == programs:
            return
        await asyncio.sleep(0)  # connections tell of it in a later turn of the loop
    raise AssertionError(f"{session.waiting} programs wait in place of {programs}")


async def gather_lines(answer: httpx.Response, into: list[str]) -> None:
    """Take a stream's lines; those before an error are there when it raises."""
    async for line in answer.aiter_lines():
        into.append(line)  # noqa: PERF401
