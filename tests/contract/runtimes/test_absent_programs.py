"""Programs that this machine has and a sandbox does not: the error says which file is missing and what to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.tasks.runtimes.absent import why_absent
from tests.support.runtimes import executable


def nothing(_path: Path) -> bool:
    """A sandbox that sees none of this machine's files."""
    return False


def test_program_that_is_not_seen_is_named_with_the_tree_to_show(tmp_path: Path) -> None:
    program = executable(tmp_path / "venv/bin/agent")
    said = why_absent(str(program), is_seen=nothing)
    assert said == (
        f"this machine has {program}, and the sandbox does not show it; "
        f"show it: BubblewrapRuntime(shown=[Path('{tmp_path}/venv')])"
    )


def test_interpreter_behind_the_link_of_an_environment_is_named_too(tmp_path: Path) -> None:
    real = executable(tmp_path / "opt/bin/python3.12")
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(real)
    said = why_absent(str(python), is_seen=lambda path: path.is_relative_to(tmp_path / "venv"))
    assert said is not None
    assert f"has {real}, and" in said
    assert f"shown=[Path('{tmp_path}/opt')]" in said
    both = why_absent(str(python), is_seen=nothing)
    assert both is not None
    assert f"shown=[Path('{tmp_path}/venv'), Path('{tmp_path}/opt')]" in both


def test_interpreter_of_a_scripts_first_line_is_named(tmp_path: Path) -> None:
    interpreter = executable(tmp_path / "opt/bin/python")
    script = executable(tmp_path / "shown/agent.py", f"#!{interpreter} -u\nprint('hello')\n")
    said = why_absent(str(script), is_seen=lambda path: path.is_relative_to(tmp_path / "shown"))
    assert said is not None
    assert f"has {interpreter}, and" in said


def test_program_that_path_finds_only_here_is_to_be_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = executable(tmp_path / "tools/bin/agent")
    monkeypatch.setenv("PATH", str(program.parent))
    said = why_absent("agent", is_seen=nothing)
    assert said is not None
    assert f"show it, and name the program by its path {program}: " in said


def test_nothing_is_said_of_what_this_machine_has_not_either_and_of_what_is_seen(tmp_path: Path) -> None:
    assert why_absent(str(tmp_path / "nowhere"), is_seen=nothing) is None
    assert why_absent("no-such-agent", is_seen=nothing) is None
    assert why_absent("bin/agent", is_seen=nothing) is None
    assert why_absent("", is_seen=nothing) is None
    assert why_absent(str(executable(tmp_path / "agent")), is_seen=lambda _path: True) is None


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert why_absent(str(tmp_path / "one"), is_seen=nothing) is None
