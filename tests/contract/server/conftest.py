"""The server's fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.server.support import Api, serving


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """An API without a key, whose polls hardly wait."""
    async with serving(tmp_path) as running:
        yield running


@pytest.fixture
async def waiting_api(tmp_path: Path) -> AsyncIterator[Api]:
    """An API whose polls wait for longer than any test takes: they must be woken."""
    async with serving(tmp_path, result_wait_timeout_sec=500.0, polling_lease_timeout_sec=1_000.0) as running:
        yield running
