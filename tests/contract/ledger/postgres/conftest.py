"""What only a ledger on PostgreSQL has: sessions, notifications, a planner, its triggers."""

import pytest

from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.ledger.urls import POSTGRES
from tests.support.databases import SECRET_KEY


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(KEY_VARIABLE, SECRET_KEY)
    return POSTGRES
