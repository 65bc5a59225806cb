"""Started runtimes of each kind that this machine has, in a folder of the test's own, and a look at what is left."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.runtimes import HAS_SANDBOXES, RUNTIMES, open_folder, running

# About sandboxes alone: they are collected where the machine can make one.
collect_ignore = [] if HAS_SANDBOXES else ["test_sandbox.py", "test_sandbox_network.py", "test_sandbox_programs.py"]


@pytest.fixture
def parent() -> Iterator[Path]:
    """Where the test's runtimes have their folders."""
    with open_folder("runtimes") as path:
        yield path


@pytest.fixture(params=RUNTIMES, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[OwnedRuntime]:
    """Which runtime: a test that uses this, or `runtime`, runs on each."""
    made: type[OwnedRuntime] = request.param
    return made


@pytest_asyncio.fixture
async def runtime(kind: type[OwnedRuntime], parent: Path) -> AsyncIterator[OwnedRuntime]:
    """A started runtime, of which nothing is left after the test."""
    made = kind(parent=parent)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
    assert list(parent.iterdir()) == []
    assert running(str(parent)) == []
