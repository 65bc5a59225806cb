"""Task classes as they are written: what would fail obscurely in a rollout, or be switched off silently, is refused."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import Hook, metric, reward, stop
from rollbook.tasks.judge import Judge
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task, check_names, load_rows
from rollbook.tasks.toolsets import Toolset
from rollbook.traces.trace import Trace


class Row(TaskData, frozen=True, kw_only=True):
    """Rows of the tasks below."""


class Rows(Task[Row]):
    """What the tasks below are made of."""


class Shell(Toolset):
    """No tools."""


JUDGE = Judge("polite", "m", rubric="r")


async def whole(self: Any, data: Row, runtime: Runtime) -> None: ...
async def other_names(self: Any, row, place, more=None) -> None: ...  # type: ignore[no-untyped-def]
async def by_names(self: Any, *given: Any, **named: Any) -> None: ...
async def nothing_but_data(self: Any, data: Row, /, runtime: Runtime | None = None) -> None: ...


async def alone(data: Row, runtime: Runtime) -> None: ...


def names(hooks: tuple[Hook, ...]) -> list[str]:
    return [hook.name for hook in hooks]


def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*given: Any) -> Any:
        return method(*given)

    return call


@pytest.mark.parametrize(
    "method",
    [whole, other_names, by_names, nothing_but_data, decorated(whole), staticmethod(alone)],
    ids=["as documented", "other names", "any", "by position only", "decorated", "static"],
)
def test_set_up_that_can_be_called_is_taken(method: Any) -> None:
    type("Right", (Rows,), {"setup": method})


async def swapped(self: Any, runtime: Runtime, data: Row) -> None: ...
async def swapped_names(self: Any, runtime: Any, data: Any) -> None: ...
async def no_data(self: Any, runtime: Runtime) -> None: ...
async def too_many(self: Any, data: Row, runtime: Runtime, trace: Trace) -> None: ...
async def named_only(self: Any, data: Row, *, runtime: Runtime) -> None: ...
def sync(self: Any, data: Row, runtime: Runtime) -> None: ...
async def swapped_ends(self: Any, trace: Trace, runtime: Runtime) -> None: ...


RIGHT = r"; write `async def setup\(self, data: Row, runtime: Runtime\) -> None`"
ENDS = r"; write `async def finalize\(self, data: Row, runtime: Runtime, trace: Trace\) -> None`"


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        (
            "setup",
            swapped,
            r"Wrong.setup has runtime where it gets the data: it is called with data and runtime, " + "in",
        ),
        ("setup", swapped, RIGHT + rf" \({__file__}, line \d+\)$"),
        ("setup", swapped_names, "Wrong.setup has runtime where it gets the data"),
        ("setup", no_data, "Wrong.setup takes runtime, and is called with data and runtime, in this order" + RIGHT),
        (
            "setup",
            too_many,
            "Wrong.setup takes data, runtime, trace, and is called with data and runtime" + ".*" + RIGHT,
        ),
        ("setup", named_only, "Wrong.setup takes data, runtime, and is called with" + ".*" + RIGHT),
        ("setup", sync, "Wrong.setup is not async, so nothing that it asks of the runtime would be done" + RIGHT),
        ("setup", 3, "Wrong.setup is int, which is no method" + RIGHT),
        ("finalize", swapped_ends, "Wrong.finalize takes trace, runtime, and is called with data, runtime and trace"),
        ("finalize", swapped_ends, ENDS),
        ("finalize", sync, "Wrong.finalize is not async" + ".*" + ENDS),
        ("finalize", whole, "Wrong.finalize takes data, runtime, and is called with" + ".*" + ENDS),
    ],
)
def test_method_that_cannot_be_called_is_refused_with_the_right_one(name: str, method: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        type("Wrong", (Rows,), {name: method})


@pytest.mark.parametrize("decorate", [reward, metric, stop], ids=["reward", "metric", "stop"])
@pytest.mark.parametrize("annotation", [Runtime, Runtime | None], ids=["always", "where there is one"])
def test_hook_that_takes_the_runtime_must_be_async(decorate: Any, annotation: Any) -> None:
    def hook(self: Any, place: Any, trace: Any) -> float:
        return 1.0

    hook.__annotations__ = {"place": annotation, "trace": Trace}
    with pytest.raises(TypeError, match=r"Wrong.hook takes the Runtime and is not async.*`async def hook\(self, …\)`"):
        type("Wrong", (Task,), {"hook": decorate(hook)})


@pytest.mark.parametrize(
    ("decorate", "example"),
    [
        (reward, "rt: Runtime, Trace or the TaskData"),
        (metric, "rt: Runtime, Trace or the TaskData"),
        (stop, "rt: Request, Response or Trace"),
    ],
    ids=["reward", "metric", "stop"],
)
def test_parameter_without_annotation_is_told_what_fits_there(decorate: Any, example: str) -> None:
    def fresh(self: Any, rt) -> float:  # type: ignore[no-untyped-def]
        return 1.0

    with pytest.raises(TypeError, match=f"has no annotation for 'rt'; annotate it, for example {example}"):
        type("Wrong", (Task,), {"hook": decorate(fresh)})


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("toolsets", (Shell,), r"which is no tuple of Toolset objects; write `toolsets = \(Shell\(\),\)`"),
        ("toolsets", Shell, r"write `toolsets = \(Shell\(\),\)`"),
        ("toolsets", Shell(), r"write `toolsets = \(Shell\(…\),\)`"),
        ("toolsets", [Shell(), whole], r"write `toolsets = \(Toolset\(whole\),\)`"),
        ("toolsets", None, r"Wrong.toolsets is None.*write `toolsets = \(Toolset\(…\),\)`"),
        ("judges", JUDGE, r"which is no tuple of Judge objects; write `judges = \(Judge\(…\),\)`"),
        ("judges", (Judge,), r"write `judges = \(Judge\(…\),\)`"),
        ("judges", "polite", r"Wrong.judges is 'polite'.*write `judges = \(Judge\(…\),\)`"),
    ],
)
def test_parts_of_another_kind_are_refused_with_what_to_write(name: str, parts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        type("Wrong", (Task,), {name: parts})

    class Late(Task[Row]):
        def __init__(self) -> None:
            setattr(self, name, parts)

    with pytest.raises(TypeError, match=message.replace("Wrong", "Late")):
        check_names("Late", Late())


def test_parts_may_be_a_list_or_a_property() -> None:
    class Right(Task[Row]):
        toolsets = [Shell()]  # noqa: RUF012

        @property
        def judges(self) -> list[Judge]:  # type: ignore[override]
            return [JUDGE]

    check_names("Right", Right())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("set_up", whole, rf"Wrong.set_up is never called: call it `setup` \({__file__}, line \d+\)"),
        ("setUp", whole, "call it `setup`"),
        ("finalise", whole, "Wrong.finalise is never called: call it `finalize`"),
        ("toolset", (Shell(),), "Wrong.toolset is not looked at: call it `toolsets`, a tuple of Toolset objects"),
        ("tool_sets", (Shell,), "call it `toolsets`"),
        ("judge", JUDGE, "call it `judges`, a tuple of Judge objects"),
    ],
)
def test_name_that_can_only_be_a_slip_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        type("Wrong", (Task,), {name: value})


def _helper(self: Any) -> None: ...


@pytest.mark.parametrize(("name", "meant"), [("settup", "setup"), ("finalized", "finalize"), ("row", "rows")])
def test_name_that_may_be_a_slip_is_warned_of(name: str, meant: str, caplog: pytest.LogCaptureFixture) -> None:
    type("Odd", (Task,), {name: _helper})
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"Odd.{name} is not called by Rollbook; if it is meant to be `{meant}`, call it so" in record.message


@pytest.mark.parametrize(
    "attributes",
    [
        {"setup": whole, "set_up": whole},
        {"judge": _helper},
        {"tools": _helper, "grade": _helper, "steps": 3, "_setup": whole},
        {"Setup": type("Setup", (), {})},
        {"row": 3},
    ],
    ids=["both", "a method", "others", "a class", "no method"],
)
def test_name_that_is_the_authors_own_is_let_be(attributes: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    type("Right", (Task,), attributes)
    assert not caplog.records


class Scored(Task[Row]):
    """What the tasks below inherit from."""

    @reward
    def right(self) -> float:
        return 1.0


def test_override_that_is_another_hook_or_none_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Measured(Scored):
        @metric
        def right(self) -> float:
            return 0.0

    class Plain(Scored):
        def right(self) -> float:
            return 0.0

    told = [record.getMessage().partition("; ")[0] for record in caplog.records]
    assert told == [
        "Measured.right is a @metric and replaces an inherited @reward",
        "Plain.right is no hook, for it has no decorator, and replaces an inherited @reward",
    ]
    assert (names(Measured.hooks.metrics), names(Measured.hooks.rewards), names(Plain.hooks.rewards)) == (
        ["right"],
        [],
        [],
    )


def test_override_that_is_meant_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Better(Scored):
        @reward
        def right(self) -> float:
            return 0.5

    class Without(Scored):
        right = None  # type: ignore[assignment]

    assert (names(Better.hooks.rewards), Without.hooks.rewards) == (["right"], ())
    assert not caplog.records


@pytest.mark.parametrize("made", [None, "row", {"id": "a"}], ids=["none", "a text", "one row"])
def test_rows_that_are_none_say_what_they_must_be(made: Any) -> None:
    task: Any = type("Sums", (Task,), {"rows": lambda self: made})()
    with pytest.raises(TypeError, match=r"Sums.rows returned .*; have it yield one row after the other.*line \d+\)"):
        load_rows(task)


async def generating(self: Any) -> AsyncIterator[Row]:
    yield Row(id="a")


async def returning(self: Any) -> list[Row]:
    return []


@pytest.mark.parametrize("method", [generating, returning])
def test_rows_and_state_that_would_not_be_waited_for_are_refused(method: Any) -> None:
    with pytest.raises(TypeError, match=r"Wrong.rows is async and would not be waited for; write `def rows\(self\)`"):
        type("Wrong", (Task,), {"rows": method})
    with pytest.raises(TypeError, match=r"Wrong.new_state is async and would not be waited for"):
        type("Wrong", (Task,), {"new_state": method})


def test_rows_may_be_any_iterable() -> None:
    def yielding(self: Any) -> Iterator[dict[str, Any]]:
        yield {"id": "a"}

    task: Any = type("Right", (Task,), {"rows": yielding})()
    assert [row.id for row in load_rows(task)] == ["a"]
