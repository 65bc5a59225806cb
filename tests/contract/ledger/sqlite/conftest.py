"""What only a ledger on SQLite has: one file, its locks, its pages, its triggers."""

import pytest

from rollbook.ledger.urls import SQLITE


@pytest.fixture
def database() -> str:
    return SQLITE
