"""An endpoint of the test's own, and the stage over it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.tasks.playing import Stage, WatchedEndpoint


@pytest.fixture
async def endpoint() -> AsyncIterator[WatchedEndpoint]:
    running = WatchedEndpoint()
    await running.start()
    yield running
    await running.close()


@pytest.fixture
def stage(endpoint: WatchedEndpoint, tmp_path: Path) -> Stage:
    return Stage(endpoint, tmp_path / "runtimes")
