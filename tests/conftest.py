"""What every tier shares: hypothesis' profiles, an environment without anyone's own settings, and databases."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.ledger.urls import POSTGRES
from tests.support.databases import DATABASES, SECRET_KEY, NewLedger, empty_place, ledger_templates
from tests.support.dealing import dealt
from tests.support.postgres import memory_or_disk

# No deadline: a machine may be slow, and no test of ours judges time. HYPOTHESIS_PROFILE=thorough searches longer.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# The folders of `tmp_path`, ledgers on SQLite among them, which would wait for the disk at each commit.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory_or_disk()))

# A shell has what it starts in the background ignore Ctrl-C, and every program that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_TESTS = Path(__file__).parent
_SLOW_TIERS = frozenset({"chaos", "processes", "reference"})
"""Folders of tests that start programs and wait for them."""

_OWN_PREFIXES = ("ROLLBOOK_", "OSMOSIS_")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps modules and thousands of tests, which live to the end, out of garbage collections: these grow with them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes run them, deals tests so that the slow ones begin first, each worker with its share."""
    if (workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT")) is None:
        return
    modules = [(path, list(tests)) for path, tests in groupby(items, key=lambda item: item.path)]
    slow = [(path.relative_to(_TESTS).parts[0] in _SLOW_TIERS, tests) for path, tests in modules]
    items[:] = dealt(slow, workers=int(workers))


@pytest.fixture(autouse=True)
def environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes Rollbook's and the reference's variables, so that a developer's settings change no result.

    A test that wants one sets it with `monkeypatch.setenv`; child processes inherit what is left.
    """
    for name in list(os.environ):
        if name.startswith(_OWN_PREFIXES):
            monkeypatch.delenv(name)


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which database keeps the ledger: a test that uses this, or a ledger below, runs on each.

    A module about one database alone overrides it. Where processes must share a secret key, the environment has one.
    """
    name: str = request.param
    if name == POSTGRES:
        monkeypatch.setenv(KEY_VARIABLE, SECRET_KEY)
    return name


@pytest.fixture(scope="session")
def new_ledger() -> Iterator[NewLedger]:
    """Makes migrated, empty ledgers."""
    with ledger_templates() as made:
        yield made


@pytest.fixture
def database_url(database: str, new_ledger: NewLedger, tmp_path: Path) -> Iterator[str]:
    """A migrated, empty ledger; its files, where it has any, lie in `tmp_path`."""
    with new_ledger(database, tmp_path) as url:
        yield url


@pytest.fixture
def empty_url(database: str, tmp_path: Path) -> Iterator[str]:
    """A place for a ledger; nothing is there yet."""
    with empty_place(database, tmp_path) as url:
        yield url
