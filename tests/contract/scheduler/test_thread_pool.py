"""The runner of an embedded server, in a thread: what user code does to its event loop is survived."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from rollbook import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, LocalBackend, get_rollout_context
from rollbook.scheduler.records import unpacked
from rollbook.scheduler.runner.logs import SecretRegistry
from rollbook.scheduler.runner.thread import ThreadPool
from rollbook.scheduler.runners import Lost
from rollbook.scheduler.wire import Assignment, Finished, Recorded
from rollbook_client.events import Phase
from tests.support.ledger import CALLED


class Flow(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, object]]:
        if ctx.metadata == {"end": "the loop"}:
            self.task = asyncio.create_task(leave())
            self.task.add_done_callback(lambda task: task.exception())
            await asyncio.Event().wait()
        if "record" in (ctx.metadata or {}):
            rollout = get_rollout_context()
            assert rollout is not None
            rollout.record(CALLED)
        return [{"role": "assistant", "content": "done"}]


async def leave() -> None:
    raise SystemExit(3)


class Reports:
    """Notes what a pool reports, to be waited for."""

    def __init__(self) -> None:
        self.ended: dict[int, Finished | Lost] = {}
        self.recordings: list[Recorded] = []
        self.slots = 0
        self._changed = asyncio.Event()

    def entered(self, key: int, phase: Phase) -> None:
        self._changed.set()

    def recorded(self, message: Recorded) -> None:
        assert message.key not in self.ended
        self.recordings.append(message)
        self._changed.set()

    def finished(self, report: Finished) -> None:
        self.ended[report.key] = report
        self._changed.set()

    def lost(self, loss: Lost) -> None:
        self.ended[loss.key] = loss
        self._changed.set()

    def slots_changed(self) -> None:
        self._changed.set()

    def broken(self, reason: str) -> None:
        pytest.fail(reason)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def assignment(key: int, **metadata: object) -> Assignment:
    request = msgspec.json.encode({"initial_messages": [], "grade": False, "metadata": metadata})
    return Assignment(key, f"r-{key}", request, "http://chat.example/", None, 0.0)


async def test_next_rollouts_run_after_one_ended_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    entered: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    pool, reports = ThreadPool(LocalBackend(workflow=Flow), SecretRegistry(), lifespan=lifespan), Reports()
    await pool.start(reports)
    pool.run(assignment(1, end="the loop"))
    await reports.until(lambda: 1 in reports.ended)
    await reports.until(lambda: pool.trouble is not None)
    assert pool.free == 0
    await reports.until(lambda: pool.free > 0)
    pool.run(assignment(2))
    await reports.until(lambda: 2 in reports.ended)
    second = reports.ended[2]
    assert isinstance(second, Finished)
    assert second.status == "success"
    assert pool.trouble is None
    assert "SystemExit" in caplog.text
    await pool.stop(10)
    assert entered[-2:] == ["in", "out"]


async def test_what_a_rollout_records_comes_before_its_end() -> None:
    pool, reports = ThreadPool(LocalBackend(workflow=Flow), SecretRegistry()), Reports()
    await pool.start(reports)
    pool.run(assignment(1, record=True))
    await reports.until(lambda: 1 in reports.ended)
    (message,) = reports.recordings
    assert [unpacked(record) for record in message.records] == [CALLED]
    await pool.stop(10)


async def test_lifespan_that_fails_is_raised_where_the_server_starts() -> None:
    def lifespan() -> contextlib.AbstractAsyncContextManager[None]:
        raise RuntimeError("no licence for this")

    pool = ThreadPool(LocalBackend(workflow=Flow), SecretRegistry(), lifespan=lifespan)
    with pytest.raises(RuntimeError, match="no licence"):
        await pool.start(Reports())
    assert pool.free == 0
    await pool.stop(10)
