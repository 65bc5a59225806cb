"""Executions report their phases and their end, whatever the backend does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from rollbook import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    LocalBackend,
    get_rollout_context,
)
from rollbook.backends.base import ExecutionBackend, ExecutionOutcome, ExecutionRequest
from rollbook.scheduler.runner.executor import Executor
from rollbook.scheduler.runner.logs import SecretRegistry
from rollbook.scheduler.wire import Assignment, Entered, Finished, ToScheduler
from rollbook.scrub import scrub

KEY = "sk-0123456789-abcdef"
URL = "http://chat.example/v1/capability-0123456789"


class Inbox:
    """What an executor emits, to be waited for."""

    def __init__(self) -> None:
        self.messages: list[ToScheduler] = []
        self._changed = asyncio.Event()

    def put(self, message: ToScheduler) -> None:
        self.messages.append(message)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def finished(self, key: int = 1) -> Finished:
        def ends() -> list[Finished]:
            return [m for m in self.messages if isinstance(m, Finished) and m.key == key]

        await self.until(lambda: bool(ends()))
        return ends()[0]


def assignment(key: int = 1, **request: object) -> Assignment:
    body = {"initial_messages": [{"role": "user", "content": "2"}], "label": "2", **request}
    return Assignment(key, f"r-{key}", msgspec.json.encode(body), URL, KEY, 0.0)


class Echo(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, object]]:
        plan = (ctx.metadata or {}).get("plan")
        if plan == "wait":
            await asyncio.Event().wait()
        if plan == "leak":
            context = get_rollout_context()
            assert context is not None
            raise RuntimeError(f"401 for {context.chat_completions_url} with {context.api_key}")
        return [*ctx.prompt, {"role": "assistant", "content": "2"}]


class Exact(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        ctx.set_reward(1.0)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def executor(inbox: Inbox, backend: ExecutionBackend | None = None) -> Executor:
    return Executor(backend or LocalBackend(workflow=Echo, grader=Exact), SecretRegistry(), inbox.put)


async def test_a_short_rollout_reports_once_with_its_phases(inbox: Inbox) -> None:
    executor(inbox).start(assignment())
    report = await inbox.finished()
    assert report.status == "success"
    assert report.phases == ("running", "grading")
    assert report.reward == 1.0
    assert {span.stage for span in report.spans} >= {"agent", "grading"}
    assert inbox.messages == [report]


async def test_a_long_rollout_tells_its_phase_before_its_end(inbox: Inbox) -> None:
    running = executor(inbox)
    running.start(assignment(metadata={"plan": "wait"}))
    await inbox.until(lambda: Entered(1, "running") in inbox.messages)
    running.cancel(1)
    report = await inbox.finished()
    assert report.status == "cancelled"
    assert report.phases == ()


async def test_error_texts_show_no_secret(inbox: Inbox) -> None:
    executor(inbox).start(assignment(metadata={"plan": "leak"}))
    report = await inbox.finished()
    assert report.err_category == "agent_error"
    assert report.err_message is not None
    assert KEY not in report.err_message
    assert "capability-0123456789" not in report.err_message


async def test_what_stands_for_the_secrets_is_one_too(inbox: Inbox) -> None:
    seen: list[str] = []

    class Elsewhere(ExecutionBackend):
        async def execute(self, request: ExecutionRequest) -> ExecutionOutcome:
            ctx = get_rollout_context()
            assert ctx is not None
            stand_ins = "http://127.0.0.1:4/s/another-secret-01234567", "another-secret-01234567"
            other = ctx.through(lambda: stand_ins)
            seen.append(f"{other.chat_completions_url} {other.api_key} {ctx.chat_completions_url} {ctx.api_key}")
            raise RuntimeError(seen[0])

    secrets = SecretRegistry()
    Executor(Elsewhere(), secrets, inbox.put).start(assignment())
    report = await inbox.finished()
    clean = "[chat_completions_url] [llm_api_key] [chat_completions_url] [llm_api_key]"
    assert report.err_message == clean
    assert scrub(seen[0], secrets.texts) == clean


async def test_a_backend_that_fails_itself_ends_the_rollout_with_its_error(inbox: Inbox) -> None:
    class Broken(ExecutionBackend):
        async def execute(self, request: ExecutionRequest) -> ExecutionOutcome:
            raise RuntimeError("no sandbox left")

    executor(inbox, Broken()).start(assignment())
    report = await inbox.finished()
    assert (report.status, report.err_message) == ("failure", "no sandbox left")


async def test_two_executions_of_one_rollout_are_cancelled_apart(inbox: Inbox) -> None:
    running = executor(inbox)
    first = assignment(1, metadata={"plan": "wait"})
    second = msgspec.structs.replace(assignment(2, metadata={"plan": "wait"}), rollout_id=first.rollout_id)
    running.start(first)
    running.start(second)
    await inbox.until(lambda: sum(isinstance(m, Entered) for m in inbox.messages) == 2)
    running.cancel(1)
    assert (await inbox.finished(1)).status == "cancelled"
    assert not [m for m in inbox.messages if isinstance(m, Finished) and m.key == 2]
    running.cancel(2)
    assert (await inbox.finished(2)).status == "cancelled"


async def test_shutting_down_ends_what_runs_and_then_the_backend(inbox: Inbox) -> None:
    order: list[str] = []

    class Watched(LocalBackend):
        async def shutdown(self) -> None:
            ended = sum(isinstance(message, Finished) for message in inbox.messages)
            order.append(f"backend after {ended} ends")

    running = executor(inbox, Watched(workflow=Echo, grader=Exact))
    running.start(assignment(metadata={"plan": "wait"}))
    await inbox.until(lambda: Entered(1, "running") in inbox.messages)
    await running.shut_down()
    assert order == ["backend after 1 ends"]
    assert (await inbox.finished()).status == "cancelled"
