"""A borrowed runtime: everything but its end is the borrower's to use."""

import pytest

from rollbook.tasks.data import NetworkPolicy
from rollbook.tasks.errors import RuntimeStoppedError
from rollbook.tasks.runtimes import borrowed
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.runtimes import RuntimeMaker


async def test_borrower_works_in_the_owners_runtime(runtime: OwnedRuntime) -> None:
    view = borrowed(runtime)
    await view.start()
    await view.write("file", b"lent")
    assert (await view.run("cat file")).stdout == b"lent"
    assert await runtime.read("file") == await view.read("file") == b"lent"
    assert (view.folder, view.workdir, view.url_of(80)) == (runtime.folder, runtime.workdir, runtime.url_of(80))
    await view.allow(NetworkPolicy())


async def test_stop_of_a_borrower_stops_nothing(runtime: OwnedRuntime) -> None:
    await borrowed(runtime).stop()
    assert not runtime.stopped
    assert (await runtime.run("echo on")).stdout == b"on\n"


async def test_runtime_that_its_owner_has_stopped_raises_to_the_borrower(kind: RuntimeMaker) -> None:
    runtime = kind()
    await runtime.start()
    view = borrowed(runtime)
    await view.start()
    await runtime.stop()
    assert view.stopped
    for use in (view.start, lambda: view.run("true"), lambda: view.read("x"), lambda: view.write("x", b"")):
        with pytest.raises(RuntimeStoppedError, match="stopped by its owner"):
            await use()
    with pytest.raises(RuntimeStoppedError):
        await view.allow(NetworkPolicy())
    with pytest.raises(RuntimeStoppedError):
        _ = view.folder
    await view.stop()


async def test_runtime_that_was_never_started_cannot_be_lent(kind: RuntimeMaker) -> None:
    with pytest.raises(RuntimeStoppedError, match="not started"):
        await borrowed(kind()).start()


async def test_view_of_a_view_is_the_view(kind: RuntimeMaker) -> None:
    view = borrowed(kind())
    assert borrowed(view) is view
