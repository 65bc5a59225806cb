"""An endpoint of the test's own, the stage over it, a backend, and each kind of runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.contract.tasks.playing import Stage, WatchedEndpoint
from tests.contract.tasks.serving import Backend
from tests.support.runtimes import RUNTIMES


@pytest.fixture
async def endpoint() -> AsyncIterator[WatchedEndpoint]:
    running = WatchedEndpoint()
    await running.start()
    yield running
    await running.close()


@pytest.fixture
def stage(endpoint: WatchedEndpoint, tmp_path: Path) -> Stage:
    return Stage(endpoint, tmp_path / "runtimes")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    made = Backend(tmp_path / "runtimes")
    yield made
    if made.made is not None:
        await made.made.shutdown()
    assert made.folders == []


@pytest.fixture(params=RUNTIMES, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[OwnedRuntime]:
    made: type[OwnedRuntime] = request.param
    return made
