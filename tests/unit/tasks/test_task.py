"""Tasks: what their rows are read as, how they are found by name, and what each rollout has of its own."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.task import Task, load_rows, load_task


class Sum(TaskData, frozen=True, kw_only=True):
    answer: int


class Sums(Task[Sum]):
    def __init__(self, rows: Iterable[Any] = ()) -> None:
        self.given = rows

    def rows(self) -> Iterable[Any]:
        return self.given


class MoreSums(Sums):
    """Says nothing of its data."""


class Untyped(Task[Any]):
    """Takes any data."""


class Counter:
    """A state with something in it."""

    def __init__(self) -> None:
        self.count = 0


class Counting(Task[TaskData]):
    state_type = Counter


TASK = Sums()


def test_data_type_is_the_one_the_class_names() -> None:
    assert (Sums.data_type, MoreSums.data_type, Untyped.data_type) == (Sum, Sum, TaskData)


def test_rows_are_read_as_the_data_type() -> None:
    rows = [{"id": "a", "answer": 3, "level": "easy"}, Sum(id="b", answer=4)]
    first, second = load_rows(Sums(rows))
    assert first == Sum(id="a", answer=3, extra={"level": "easy"})
    assert second == Sum(id="b", answer=4)
    assert load_rows(Untyped()) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "answer": 1}, {"id": "b"}], "row 1 of Sums: Sum: .*answer"),
        ([{"id": "a", "answer": "x"}], "row 0 of Sums: Sum.answer: "),
        (["a"], "row 0 of Sums: Sum is made of a mapping, got 'a'"),
        ([{"id": "a", "answer": 1}, {"id": "a", "answer": 2}], "rows 0 and 1 of Sums have the same id 'a'"),
    ],
)
def test_row_that_does_not_fit_is_refused_with_its_number(rows: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_rows(Sums(rows))


@pytest.mark.parametrize("name", ["Sums", "TASK"])
def test_task_is_found_by_module_and_name(name: str) -> None:
    assert type(load_task(f"rollbook_task_of_a_test:{name}")).__name__ == "Sums"


@pytest.mark.parametrize("place", ["rollbook_task_of_a_test.py", "./rollbook_task_of_a_test.py"])
@pytest.mark.parametrize("name", ["Sums", "TASK"])
def test_task_is_found_by_file_and_name(place: str, name: str) -> None:
    found = load_task(f"{place}:{name}")
    assert type(found).__name__ == "Sums"
    assert type(load_task(f"rollbook_task_of_a_test:{name}")) is type(found), "the file was loaded twice"


def test_file_of_a_task_finds_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "deeper"
    folder.mkdir()
    (folder / "beside_a_task_of_a_test.py").write_text("from rollbook_task_of_a_test import Sums as Base\n")
    (folder / "lies_elsewhere.py").write_text("from beside_a_task_of_a_test import Base\n\n\nclass Own(Base): ...\n")
    load_task("rollbook_task_of_a_test.py:Sums")
    for name in ("beside_a_task_of_a_test", "lies_elsewhere"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert type(load_task("deeper/lies_elsewhere.py:Own")).__name__ == "Own"


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rollbook_task_of_a_test.py").write_text(
        "from rollbook.tasks.task import Task\n\n\nclass Sums(Task): ...\n\n\nTASK = Sums()\nNUMBER = 3\n"
        "class Needy(Task):\n    def __init__(self, size): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # what load_task puts there is gone after the test
    monkeypatch.delitem(sys.modules, "rollbook_task_of_a_test", raising=False)


def test_task_may_be_given_as_it_is() -> None:
    assert load_task(TASK) is TASK
    assert type(load_task(Sums)) is Sums


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("rollbook_task_of_a_test", ValueError, "names no object"),
        ("no_such_module_here:Sums", ImportError, "no_such_module_here"),
        ("rollbook_task_of_a_test:Missing", ImportError, "has no 'Missing'; check the name"),
        ("rollbook_task_of_a_test:Sum", ImportError, "has no 'Sum'; did you mean Sums\\?"),
        ("rollbook_task_of_a_test.py:Sum", ImportError, "has no 'Sum'; did you mean Sums\\?"),
        ("no_such_file_here.py:Sums", ImportError, "no_such_file_here.py: there is no such file"),
        ("rollbook_task_of_a_test.py", ValueError, "write it as .*'path/to/file.py:Name'"),
        ("rollbook_task_of_a_test:Needy", TypeError, "Needy takes arguments .*give them defaults"),
        ("rollbook_task_of_a_test:NUMBER", TypeError, "NUMBER is 3 .*not a task; name a subclass"),
    ],
)
def test_name_that_leads_to_no_task_says_why(reference: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_task(reference)


def test_each_rollout_works_with_a_copy_and_a_state_of_its_own() -> None:
    task: Any = Counting()
    first, second = task.for_rollout(), task.for_rollout()
    first.note = "mine"
    first.state.count += 1
    assert not hasattr(second, "note")
    assert (second.state.count, task.state) == (0, None)
    assert type(first.state) is Counter
    assert Sums().for_rollout().state == SimpleNamespace()
