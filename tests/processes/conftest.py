"""A deployment for each test that kills or stops something, and one for each module that leaves its processes alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import NewLedger
from tests.support.processes import Deployment, deployed


@pytest.fixture
def deployment(database: str, new_ledger: NewLedger, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(database, new_ledger, tmp_path) as deployment:
        yield deployment
