"""The embedded server's own order of beginning and ending."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollbook import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, LocalBackend, create_rollout_server
from rollbook.backends.errors import MachineError
from tests.support.ledger import rows

STOPPED = "SELECT kind, stopped_at IS NOT NULL FROM members ORDER BY kind"


class Echo(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        return ctx.prompt


async def test_api_leaves_before_the_scheduler_drains(database_url: str) -> None:
    seen: list[list[tuple[Any, ...]]] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        seen.append(rows(database_url, STOPPED))

    app = create_rollout_server(
        backend=LocalBackend(workflow=Echo), lifespan=lifespan, database_url=database_url, configure_logging=False
    )
    async with app.lifespan():
        assert rows(database_url, STOPPED) == [("api", 0), ("scheduler", 0)]
    # While user code still cleans up nobody can poll, and so no API may count as alive.
    assert seen == [[("api", 1), ("scheduler", 0)]]
    assert rows(database_url, STOPPED) == [("api", 1), ("scheduler", 1)]


async def test_lifespan_that_fails_leaves_nobody_behind(database_url: str) -> None:

    def lifespan(_: object) -> contextlib.AbstractAsyncContextManager[None]:
        raise RuntimeError("no licence for this")

    app = create_rollout_server(
        backend=LocalBackend(workflow=Echo), lifespan=lifespan, database_url=database_url, configure_logging=False
    )
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="no licence")):
        async with app.lifespan():
            pytest.fail("it started")
    assert rows(database_url, STOPPED) == [("api", 1), ("scheduler", 1)]


class Needy(LocalBackend):
    """Lacks something on this machine."""

    async def check(self) -> None:
        raise MachineError("no sandbox can be made here")


async def test_backend_that_misses_something_on_this_machine_is_not_started(database_url: str) -> None:
    app = create_rollout_server(backend=Needy(workflow=Echo), database_url=database_url, configure_logging=False)
    with pytest.RaisesGroup(pytest.RaisesExc(MachineError, match="no sandbox can be made here")):
        async with app.lifespan():
            pytest.fail("it started")
    assert rows(database_url, STOPPED) == [("api", 1), ("scheduler", 1)]


async def lifespan_messages(app: Any) -> list[dict[str, Any]]:
    """What a server is told of a start that fails; the error is raised, too."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    with pytest.raises(BaseExceptionGroup):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
    return sent


async def test_start_that_the_ledger_refuses_is_one_sentence(database_url: str) -> None:
    rows(database_url, "UPDATE alembic_version SET version_num = '0099' RETURNING 1")
    app = create_rollout_server(backend=LocalBackend(workflow=Echo), database_url=database_url, configure_logging=False)
    (failed,) = await lifespan_messages(app)
    assert failed["type"] == "lifespan.startup.failed"
    assert failed["message"].startswith("the server cannot start: ")
    assert "0099" in failed["message"]
    assert "\n" not in failed["message"]


async def test_start_that_fails_in_code_of_the_users_shows_where(database_url: str) -> None:
    def lifespan(_: object) -> contextlib.AbstractAsyncContextManager[None]:
        raise RuntimeError("no licence for this")

    app = create_rollout_server(
        backend=LocalBackend(workflow=Echo), lifespan=lifespan, database_url=database_url, configure_logging=False
    )
    (failed,) = await lifespan_messages(app)
    assert "Traceback" in failed["message"]
    assert "no licence for this" in failed["message"]
