"""Traces and rollouts with few words, and a judge's endpoint that answers from a list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rollbook.tasks.arguments import Given
from rollbook.tasks.data import TaskData
from rollbook.traces.calls import ModelCall
from rollbook.traces.trace import Trace

WAIT_SEC = 20
"""How long a test waits for what must happen; long, because a loaded machine is no failure."""

PROMPT = {"role": "user", "content": "What is 6 times 7?"}
REPLY = {"role": "assistant", "content": "42"}


def played(**fields: Any) -> Trace:
    """A trace with one turn."""
    trace = Trace(rollout_id="r-1", **fields)
    trace.commit_call(ModelCall(started_at=1, ended_at=2), REPLY, trace.commit_prompt([PROMPT]))
    return trace


def given_to(owner: object, **fields: Any) -> Given:
    """What a rollout gives to its owner's methods, with a trace of one turn where none is named."""
    data = TaskData(id="t-1", prompt="What is 6 times 7?", extra={"answer": "42"})
    return Given(**{"owner": owner, "data": data, "trace": played(), **fields})


class Answer:
    """One answer of the scripted endpoint; `hang` leaves the request without any."""

    def __init__(self, status: int, body: Any, *, headers: dict[str, str] | None = None, hang: bool = False) -> None:
        self.status, self.headers, self.hang = status, headers or {}, hang
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


def verdict(text: str, *, usage: dict[str, Any] | None = None) -> Answer:
    """A chat completion with this text."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return Answer(200, {"model": "grader-1", "choices": [choice], "usage": usage})


class Grader:
    """A real HTTP server that answers each request with the next of its answers, the last again and again."""

    def __init__(self, answers: list[Answer]) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.asked = asyncio.Event()
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                self.headers.append(headers)
                self.requests.append(json.loads(await reader.readexactly(int(headers["content-length"]))))
                answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
                self.asked.set()
                if answer.hang:
                    await reader.read()  # until the client gives up
                    return
                lines = [f"HTTP/1.1 {answer.status} X", f"Content-Length: {len(answer.body)}"]
                lines += [f"{name}: {value}" for name, value in answer.headers.items()]
                writer.write("\r\n".join([*lines, "", ""]).encode() + answer.body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has what it wanted
        finally:
            writer.close()


@asynccontextmanager
async def grader(*answers: Answer) -> AsyncIterator[Grader]:
    """A running `Grader` on a free port of this machine."""
    server = Grader(list(answers))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()


class Hands:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
