"""Whatever a task's code puts into a trace, it is written, can be read, and says what it lacks."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any

import pytest

from rollbook.traces.mending import REPLACED
from rollbook.traces.storage import dumps, loads
from rollbook.traces.trace import Trace
from tests.unit.traces.conversations import Turn, assistant, played, user


def again(trace: Trace) -> Trace:
    """The trace as a reader gets it."""
    return loads(dumps(trace))


def conversation() -> Trace:
    """A trace of one turn."""
    return played([Turn([user("hello")], assistant("hi"), None)])


def endless() -> dict[str, Any]:
    """A mapping that holds itself, and something else."""
    made: dict[str, Any] = {"a": 1}
    made["self"] = [made]
    return made


@dataclasses.dataclass
class Knot:
    """Holds itself."""

    other: Any = None

    def __post_init__(self) -> None:
        self.other = self


class Unwilling(float):
    """A number whose own methods raise."""

    def __float__(self) -> float:
        raise RuntimeError("no")


def deep(levels: int) -> list[Any]:
    """Lists in lists."""
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def test_mapping_that_holds_itself_is_cut_where_it_does(caplog: pytest.LogCaptureFixture) -> None:
    trace = conversation()
    trace.info["odd"] = endless()
    trace.info["fine"] = {"kept": [1, 2.5, "three", None, True]}
    with caplog.at_level(logging.WARNING):
        read = again(trace)
    assert read.info["odd"] == {"a": 1, "self": ["<a dict that holds itself>"]}
    assert read.info["fine"] == {"kept": [1, 2.5, "three", None, True]}
    assert REPLACED not in read.info
    assert read.nodes == trace.nodes
    assert read.calls == trace.calls
    assert "replaced" in caplog.text


@pytest.mark.parametrize(
    "value",
    [deep(5_000), Knot(), Unwilling(), 10**5_000, {(1, 2): 3}, {None: 1}, {b"k": 1}, [endless()], "\ud800"],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("surrogates", [False, True])
def test_no_value_costs_the_trace(value: Any, surrogates: bool) -> None:
    trace = conversation()
    trace.info["odd"] = value
    trace.info["more"] = "\udfff" if surrogates else math.nan
    trace.task["odd"] = value
    trace.nodes[0].message["odd"] = value
    read = again(trace)
    assert set(read.info) == {"odd", "more"}
    assert [node.message["content"] for node in read.nodes] == ["hello", "hi"]
    assert len(read.calls) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, "much", [1], 10**400])
def test_score_that_is_no_number_is_null_and_told(value: Any) -> None:
    trace = conversation()
    trace.rewards |= {"solved": value, "fine": 1.0}
    trace.metrics |= {"words": value}
    trace.weights |= {"solved": value, "fine": 2.0}
    read = again(trace)
    assert read.rewards == {"solved": None, "fine": 1.0}
    assert read.metrics == {"words": None}
    assert read.weights == {"fine": 2.0}
    assert set(read.info[REPLACED]) == {"rewards['solved']", "metrics['words']", "weights['solved']"}
    assert read.info[REPLACED]["rewards['solved']"] == repr(value)[:200]


@pytest.mark.parametrize("field", ["rewards", "metrics", "weights", "info", "errors", "extra_usage", "task", "spans"])
@pytest.mark.parametrize("value", [5, ["x"]], ids=["a number", "a list of texts"])
def test_field_that_holds_something_else_is_left_out_and_told(field: str, value: Any) -> None:
    trace = conversation()
    setattr(trace, field, value)
    read = again(trace)
    assert field in read.info[REPLACED]
    assert not getattr(read, field) or field == "info"
    assert read.nodes == trace.nodes


def test_trace_that_is_well_is_not_touched(caplog: pytest.LogCaptureFixture) -> None:
    trace = conversation()
    trace.rewards |= {"solved": 1, "unknown": None}
    with caplog.at_level(logging.WARNING):
        assert again(trace) == trace
    assert caplog.text == ""
