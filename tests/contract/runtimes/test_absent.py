"""A machine that lacks what sandboxes take: the error names the package, on every machine."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from rollbook.tasks.runtimes import BubblewrapRuntime, RuntimeUnavailableError
from rollbook.tasks.runtimes.keeper import Keeper
from rollbook.tasks.runtimes.sandbox import find_tools, is_reachable
from tests.support.runtimes import HAS_SANDBOXES

SYSTEM = ("/usr/bin/nsenter", "/usr/bin/setpriv", "/usr/bin/setsid")


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


async def test_absent_bubblewrap_is_an_error_that_names_its_package(
    bin_folder: Path, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_wheel(monkeypatch)
    runtime = BubblewrapRuntime(parent=parent)
    with pytest.raises(RuntimeUnavailableError, match="apt-get install bubblewrap"):
        await runtime.start()
    assert runtime.stopped
    assert list(parent.iterdir()) == []


def test_bubblewrap_on_the_path_goes_before_the_wheels(bin_folder: Path) -> None:
    tool = bin_folder / "bwrap"
    tool.touch(mode=0o755)
    assert find_tools().bwrap == tool


def test_absent_system_tool_is_an_error_that_names_its_package(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bin_folder / "bwrap").touch(mode=0o755)
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "nsenter" else found(name, path=path))
    with pytest.raises(RuntimeUnavailableError, match=r"nsenter, which is not installed.*`util-linux`"):
        find_tools()


async def test_forbidden_namespaces_are_an_error_that_says_what_to_allow(tmp_path: Path) -> None:
    keeper = Keeper(
        lambda status: ["/bin/sh", "-c", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"],
        home=tmp_path,
    )
    with pytest.raises(RuntimeUnavailableError, match=r"No permissions to create.*user\.max_user_namespaces"):
        await keeper.come_up()
    await keeper.stop()


async def test_check_says_whether_this_machine_can_make_a_sandbox() -> None:
    if HAS_SANDBOXES:
        await BubblewrapRuntime.check()
    else:
        with pytest.raises(RuntimeUnavailableError):
            await BubblewrapRuntime.check()


def test_folder_of_one_user_cannot_be_reached_by_others(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert not is_reachable(closed / "file", 12345)
    assert is_reachable(Path("/usr/bin/env"), 12345)
    assert is_reachable(closed, closed.stat().st_uid) or tmp_path.parent.stat().st_uid != closed.stat().st_uid
