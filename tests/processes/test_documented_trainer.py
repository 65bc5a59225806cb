"""docs/trainers.md, as it is written, before a server that drains, restarts and comes back."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

from rollbook.ledger.urls import SQLITE
from rollbook_client import RolloutClient
from tests.support.documents import programs, write_named
from tests.support.processes import LIMIT_SEC, Deployment, until

PAGE = "docs/trainers.md"
REFUSED = "ConnectError"


@pytest.fixture
def database() -> str:
    """What needs no server."""
    return SQLITE


@pytest.fixture
def patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's module, imported as a trainer would, with shorter pauses."""
    write_named(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "patience", raising=False)
    module = importlib.import_module("patience")
    monkeypatch.setitem(sys.modules, "patience", module)
    monkeypatch.setattr(module, "PAUSE_SEC", 0.05)
    return module


class Observed(httpx.AsyncHTTPTransport):
    """Connections that note what became of each request: its status, or its error's name."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, list[int | str]] = {"POST": [], "GET": []}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = await super().handle_async_request(request)
        except httpx.TransportError as error:
            self.outcomes[request.method].append(type(error).__name__)
            raise
        self.outcomes[request.method].append(response.status_code)
        return response

    async def sees(self, method: str, outcome: int | str, *, times: int = 1) -> None:
        """Return when requests have had this outcome so many times from now on."""
        wanted = self.outcomes[method].count(outcome) + times
        await until(lambda: self.outcomes[method].count(outcome) >= wanted, what=f"{method}: {outcome}")


@asynccontextmanager
async def trainer(deployment: Deployment) -> AsyncIterator[tuple[RolloutClient, Observed]]:
    observed = Observed()
    async with httpx.AsyncClient(transport=observed) as http, asyncio.timeout(LIMIT_SEC):
        # Short, so that the page's loop goes round and not the client's alone.
        yield RolloutClient(url=deployment.url, http_client=http, admission_timeout_sec=0.3), observed


async def drain(deployment: Deployment, option: str) -> None:
    command = deployment.command("drain", option)
    assert await command.end() == 0, command.output


async def test_admissions_and_polls_outlast_drains_and_restarts(deployment: Deployment, patience: Any) -> None:
    api = deployment.api()
    await deployment.answering()
    await drain(deployment, "--no-wait")
    async with trainer(deployment) as (client, observed), asyncio.TaskGroup() as tasks:
        admission = tasks.create_task(patience.persistent(client, "r-1"))
        await observed.sees("POST", 503, times=2)
        assert await api.stop() == 0, api.output
        await observed.sees("POST", REFUSED, times=2)
        api = deployment.api()
        await observed.sees("POST", 503)
        await drain(deployment, "--off")
        handle = await admission

        polling = tasks.create_task(patience.patient(client, handle))
        await observed.sees("GET", 200)
        assert await api.stop() == 0, api.output
        # A handle gives up at its third; so this is the second one.
        await observed.sees("GET", REFUSED, times=4)
        deployment.api()
        deployment.scheduler()
        outcome = await polling
    assert outcome.status == "success"
    assert deployment.admitted == 1
    deployment.check_ledger()


async def test_every_other_program_of_the_page_runs(
    deployment: Deployment, patience: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, watch, shown, killed = programs(PAGE)
    assert shown == Path(patience.__file__).read_text()
    deployment.api(api_key="the server's key")
    deployment.scheduler()
    await deployment.answering(api_key="the server's key")
    script = tmp_path / "run.py"
    script.write_text(run.replace("http://127.0.0.1:8000", deployment.url))
    started = deployment.start("run", str(script), ROLLBOOK_API_KEY="the server's key")
    assert await started.end() == 0, started.output
    assert started.output.startswith("0.0 [{'role': 'user', 'content': 'What is 2 + 2?'}")

    monkeypatch.chdir(tmp_path)
    Path("saved").mkdir()
    async with deployment.client(api_key="the server's key") as client:
        await loaded(watch).watch(client)
        page = loaded(killed)
        for rollout_id in ("r-1", "r-2"):
            page.keep(await patience.persistent(client, rollout_id))
        assert [outcome.rollout_id for outcome in await page.collect(client)] == ["r-1", "r-2"]
    assert {file.stat().st_mode & 0o777 for file in Path("saved").iterdir()} == {0o600}


def loaded(program: str) -> SimpleNamespace:
    """What a program defines."""
    names: dict[str, Any] = {}
    exec(program, names)  # the page's own words
    return SimpleNamespace(**{name: value for name, value in names.items() if not name.startswith("__")})
