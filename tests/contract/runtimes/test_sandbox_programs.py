"""Whether a sandbox runs what it is asked to: what it sees of this machine's programs, and a try before any rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.tasks.data import Resources
from rollbook.tasks.runtimes import BubblewrapRuntime, RuntimeUnavailableError, borrowed
from tests.support.runtimes import executable, running


@pytest.fixture
def homes(parent: Path) -> Path:
    """Where runtimes have their folders; what lies beside is not theirs to sweep."""
    return parent / "homes"


async def test_sandbox_knows_what_it_sees(parent: Path, homes: Path) -> None:
    tree = parent / "tree"
    program, own = executable(tree / "bin/agent"), executable(parent / "work/agent")
    hidden, seen = BubblewrapRuntime(parent=homes), BubblewrapRuntime(parent=homes, shown=[tree])
    for runtime in (hidden, seen):
        await runtime.start()
    try:
        assert f"shown=[Path('{tree}')]" in (borrowed(hidden).why_absent(str(program)) or "")
        assert seen.why_absent(str(program)) is None
        assert hidden.why_absent("/usr/bin/env") is None
        assert hidden.why_absent(str(own)) is not None
        await hidden.write(str(own), b"")
        assert hidden.why_absent(str(own)) is None, "it has a file of its own there"
    finally:
        for runtime in (hidden, seen):
            await runtime.stop()


async def test_what_is_shown_may_be_named_by_texts_and_runs(parent: Path, homes: Path) -> None:
    program = executable(parent / "tree/bin/agent", "#!/bin/sh\necho here\n")
    runtime = BubblewrapRuntime(parent=homes, shown=[str(parent / "tree")])
    await runtime.start()
    try:
        assert (await runtime.run([str(program)])).stdout == b"here\n"
    finally:
        await runtime.stop()


async def test_sandbox_that_works_leaves_nothing_of_its_try(homes: Path) -> None:
    await BubblewrapRuntime(parent=homes).try_out()
    assert list(homes.iterdir()) == []
    assert running(str(homes)) == []


async def test_sandbox_that_runs_no_program_is_found_out_by_the_try(homes: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match="a sandbox of this machine runs no program"):
        await BubblewrapRuntime(parent=homes, resources=Resources(memory_mb=1)).try_out()
    assert list(homes.iterdir()) == []


async def test_what_cannot_be_shown_is_found_out_by_the_try(homes: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match="nowhere cannot be shown"):
        await BubblewrapRuntime(parent=homes, shown=[homes / "nowhere"]).try_out()


async def test_machine_whose_network_namespaces_are_broken_is_found_out_by_the_try(
    parent: Path, homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "#!/bin/sh\necho 'bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted' >&2\nexit 1\n"
    monkeypatch.setenv("PATH", str(executable(parent / "bin/bwrap", script).parent))
    with pytest.raises(RuntimeUnavailableError, match="could not make a sandbox here: bwrap: loopback"):
        await BubblewrapRuntime(parent=homes).try_out()
    assert list(homes.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_processes": 0}, "max_processes must be a whole number from 1 on; got 0"),
        ({"user": -5}, "user must be a whole number from 0 on; got -5"),
        ({"output_limit_bytes": 1.5}, "output_limit_bytes must be a whole number from 0 on; got 1.5"),
    ],
)
def test_number_that_does_not_fit_is_refused_with_its_name(options: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        BubblewrapRuntime(**options)  # type: ignore[arg-type]  # one of them is what is tested
