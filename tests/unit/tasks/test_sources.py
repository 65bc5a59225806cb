"""Mistakes that only the source of a class shows: a hook under a second method of its name, and a missing await."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path

import pytest

IMPORTS = """\
from rollbook.tasks import Runtime, Task, TaskData, Toolset, Trace, metric, reward, tool
from rollbook.tasks import hooks

"""
LINE = len(IMPORTS.splitlines())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def load(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import a module of this text, which is told by its name alone."""
    Path("written_for_a_test.py").write_text(IMPORTS + textwrap.dedent(source))
    monkeypatch.delitem(sys.modules, "written_for_a_test", raising=False)
    importlib.invalidate_caches()
    importlib.import_module("written_for_a_test")
    monkeypatch.delitem(sys.modules, "written_for_a_test")


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("@reward", "@metric", "reward"),
        ("@reward(weight=2)", "", "reward"),
        ("@hooks.metric", "@hooks.metric", "metric"),
    ],
)
def test_hook_under_a_second_method_of_its_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, first: str, second: str, kind: str
) -> None:
    source = f"""\
    class Sums(Task[TaskData]):
        {first}
        def right(self) -> float:
            return 1.0
        {second}
        def right(self) -> float:
            return 0.0
    """
    with pytest.raises(TypeError) as caught:
        load(source, monkeypatch)
    place = f"line {LINE + 6}"
    assert str(caught.value).startswith(
        f"Sums.right is there twice: the @{kind} of line {LINE + 3} is lost under the one of {place}; give one of them"
    )
    assert str(caught.value).endswith(f"written_for_a_test.py, {place})")


def test_tool_under_a_second_one_of_its_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """\
    class Files(Toolset):
        @tool
        async def read(self, path: str) -> str: ...
        @tool
        async def read(self, path: str, lines: int) -> str: ...
    """
    with pytest.raises(TypeError, match=r"Files.read is there twice: the @tool of line \d+ is lost"):
        load(source, monkeypatch)


@pytest.mark.parametrize(
    ("method", "called"),
    [
        ("async def setup(self, data: TaskData, runtime: Runtime) -> None:", "runtime.write"),
        ("async def setup(self, data, runtime):", "runtime.write"),
        ("@reward\n    async def right(self, place: Runtime | None) -> float:", "place.write"),
        ("async def helper(self, place: 'Runtime') -> None:", "place.write"),
    ],
    ids=["set-up", "no annotations", "a reward", "a method of the author's"],
)
def test_call_of_the_runtime_that_is_not_awaited_is_refused(
    monkeypatch: pytest.MonkeyPatch, method: str, called: str
) -> None:
    source = f"class Sums(Task[TaskData]):\n    {method}\n        if True:\n            {called}('a.txt', b'')\n"
    line = LINE + len(source.splitlines())
    with pytest.raises(TypeError, match=rf"Sums.\w+ calls {called} and does not wait for it") as caught:
        load(source, monkeypatch)
    assert f"write `await {called}(…)`" in str(caught.value)
    assert str(caught.value).endswith(f"written_for_a_test.py, line {line})")


def test_tool_that_does_not_wait_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """\
    class Files(Toolset):
        @tool
        async def write(self, text: str, runtime: Runtime) -> None:
            runtime.write("a.txt", text.encode())
    """
    with pytest.raises(TypeError, match=r"Files.write calls runtime.write and does not wait for it"):
        load(source, monkeypatch)


def test_what_waits_in_other_ways_and_what_is_no_hook_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """\
    import asyncio
    from typing import overload

    class Sums(Task[TaskData]):
        @overload
        def kept(self, which: int) -> int: ...
        @overload
        def kept(self, which: str) -> str: ...
        def kept(self, which):
            return which

        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            await runtime.write("a.txt", b"")
            self.state.running = asyncio.create_task(runtime.run("sleep 1"))
            await asyncio.gather(runtime.read("a.txt"), runtime.read("a.txt"))
            runtime.url_of(80)

        def other(self, runtime: dict) -> None:
            runtime.stop()

        class Inner:
            @reward
            def right(self) -> float:
                return 1.0

        if True:
            @reward
            def right(self) -> float:
                return 1.0
    """
    load(source, monkeypatch)


def test_class_without_source_is_taken_as_it_is() -> None:
    names: dict[str, object] = {}
    exec(IMPORTS + "class Sums(Task):\n    async def setup(self, data, runtime):\n        runtime.stop()\n", names)
    assert "Sums" in names
