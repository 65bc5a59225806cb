"""A deployment for each test that kills or stops something, and one for each module that leaves its processes alone;
and a ledger with the command line over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.settings import DATABASE_VARIABLE
from tests.support import ledger as make
from tests.support.commands import CommandLine
from tests.support.databases import NewLedger
from tests.support.processes import Deployment, deployed


@pytest.fixture
def deployment(database: str, new_ledger: NewLedger, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(database, new_ledger, tmp_path) as deployment:
        yield deployment


@pytest.fixture
def rollbook(database_url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    return CommandLine(database_url, capfd)


@pytest.fixture
def writer(database_url: str) -> Iterator[make.Writing]:
    with make.writing(database_url) as writer:
        yield writer
