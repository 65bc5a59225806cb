"""An endpoint of the test's own, the stage over it, and a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.tasks.playing import Stage, WatchedEndpoint
from tests.contract.tasks.serving import Backend


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
