"""What the tests of the life cycle play with: rollouts of few words, and an agent that does as it is told.

Nothing of ours is replaced: the agent's calls go through the endpoint to a scripted model server, over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx
from msgspec import Struct

from rollbook.interception.endpoint import Endpoint
from rollbook.interception.messages import CallPolicy
from rollbook.interception.session import Session
from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.base import Exchange, Harness
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from rollbook_client.events import Event
from tests.support.model_server import ModelServer

WAIT_SEC = 20
"""How long a test waits for what must happen; long, because a loaded machine is no failure."""

PROMPT = "What is 6 times 7?"
SAID: list[MessageDict] = [{"role": "user", "content": PROMPT}]
NOWHERE = "http://127.0.0.1:9/v1/chat/completions"
"""Where no model is, for rollouts that make no call."""


class Bare(Task[TaskData]):
    """A task that asks for nothing."""


class WatchedEndpoint(Endpoint):
    """An endpoint that remembers the sessions it gave out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sessions: list[Session] = []

    def open(self, url: str, api_key: str | None, policy: CallPolicy, **options: Any) -> Session:
        """Remember it."""
        session = super().open(url, api_key, policy, **options)
        self.sessions.append(session)
        return session


class Got(Struct):
    """What the agent got for a call."""

    status: int
    text: str | None
    message: MessageDict
    error: str | None
    finish_reason: str | None = None


class Agent:
    """Makes model calls and keeps the conversation as a program would."""

    def __init__(self, exchange: Exchange, client: httpx.AsyncClient) -> None:
        self.exchange = exchange
        self.messages = [dict(message) for message in exchange.messages]
        self.got: list[Got] = []
        self._client = client

    async def ask(self, *said: MessageDict, streamed: bool = False, **body: Any) -> Got:
        """Add messages to the conversation and have the model answer it."""
        self.messages += said
        got = await self.call(self.messages, streamed=streamed, **body)
        if got.status == 200:
            self.messages.append(got.message)
        return got

    async def call(self, messages: list[MessageDict], *, streamed: bool = False, **body: Any) -> Got:
        """One call with messages of its own."""
        url, headers = (
            f"{self.exchange.base_url}/chat/completions",
            {"Authorization": f"Bearer {self.exchange.api_key}"},
        )
        sent = {"model": self.exchange.model, "messages": messages, "stream": streamed, **body}
        async with self._client.stream("POST", url, json=sent, headers=headers) as answer:
            raw = await answer.aread()
        got = _streamed(raw) if answer.headers["content-type"].startswith("text/event-stream") else _plain(raw)
        got.status = answer.status_code
        self.got.append(got)
        return got

    async def post(self, url: str, body: Any) -> None:
        """Send something that is no model call."""
        await self._client.post(url, json=body)


def _plain(raw: bytes) -> Got:
    answer = json.loads(raw)
    if "error" in answer:
        return Got(0, None, {}, answer["error"]["message"])
    [choice] = answer["choices"]
    return Got(0, choice["message"].get("content"), choice["message"], None, choice["finish_reason"])


def _streamed(raw: bytes) -> Got:
    events = [line.removeprefix("data: ") for line in raw.decode().splitlines() if line.startswith("data: ")]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    error = next((chunk["error"]["message"] for chunk in chunks if "error" in chunk), None)
    return Got(0, text, {"role": "assistant", "content": text}, error, reasons[-1] if reasons else None)


type Play = Callable[[Agent], Awaitable[list[MessageDict] | None]]
"""What an agent does in a segment; what it returns is the conversation as it has it."""


class Acting(Harness):
    """Does what the test says, segment after segment: the last part of the play is played again and again."""

    name: ClassVar[str] = "acting"
    resumes: ClassVar[bool] = True

    def __init__(self, *plays: Play) -> None:
        self.plays = plays
        self.agents: list[Agent] = []

    async def run(self, exchange: Exchange) -> list[MessageDict] | None:
        async with httpx.AsyncClient(timeout=None, trust_env=False, verify=False) as client:
            agent = Agent(exchange, client)
            self.agents.append(agent)
            return await self.plays[min(len(self.agents), len(self.plays)) - 1](agent)


def spend(seconds: float) -> None:
    """Use up time as work does that blocks."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def ask_once(agent: Agent) -> None:
    """One call."""
    await agent.ask()


def ask_times(times: int, *, streamed: bool = False) -> Play:
    """As many calls as that, each with the conversation so far and a further message; refused ones end it."""

    async def play(agent: Agent) -> None:
        for turn in range(times):
            more = () if turn == 0 else ({"role": "user", "content": f"go on, {turn}"},)
            if (await agent.ask(*more, streamed=streamed)).status != 200:
                return

    return play


class Stage:
    """Makes rollouts over one endpoint, with runtimes in one folder, and keeps what they tell."""

    def __init__(self, endpoint: WatchedEndpoint, folder: Path) -> None:
        self.endpoint = endpoint
        self.folder = folder
        self.told: list[Event] = []
        self.runtimes: list[SubprocessRuntime] = []

    def runtime(self) -> SubprocessRuntime:
        """A further runtime, not started."""
        made = SubprocessRuntime(parent=self.folder)
        self.runtimes.append(made)
        return made

    def rollout(
        self,
        model: ModelServer | None,
        harness: Harness | None = None,
        *,
        task: Task[Any] | None = None,
        data: TaskData | None = None,
        runtime: Runtime | Callable[..., Runtime] | None = None,
        **options: Any,
    ) -> Rollout:
        """A rollout of a bare task with one call, in a runtime of its own, unless told otherwise."""
        return Rollout(
            task or Bare(),
            data or TaskData(id="t-1", prompt=PROMPT),
            harness or Acting(ask_once),
            runtime or self.runtime,
            chat_completions_url=NOWHERE if model is None else f"{model.url}/chat/completions",
            endpoint=self.endpoint,
            tell=self.told.append,
            **options,
        )

    def tells[E: Event](self, kind: type[E]) -> list[E]:
        """What was told of this kind."""
        return [event for event in self.told if isinstance(event, kind)]

    async def until_waiting(self, programs: int) -> None:
        """Wait until so many calls of the rollout are under way."""
        async with asyncio.timeout(WAIT_SEC):
            while self.endpoint.sessions[-1].waiting != programs:  # noqa: ASYNC110 - connections tell nobody
                await asyncio.sleep(0)

    @property
    def left_behind(self) -> list[str]:
        """Sessions that are open, and folders of runtimes."""
        sessions = ["a session" for session in self.endpoint.sessions if not session.closed]
        return sessions + ([path.name for path in self.folder.iterdir()] if self.folder.exists() else [])


async def played(rollout: Rollout) -> Trace:
    """Open, one step, close."""
    if await rollout.open():
        await rollout.step()
    return await rollout.close()
