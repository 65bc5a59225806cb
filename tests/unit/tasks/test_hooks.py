"""Hooks of a class: what they are routed by, their order, inheritance, and every wrong shape refused with its name."""

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from rollbook.interception.messages import Request, Response
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import Hook, Hooked, intercept, metric, reward, stop
from rollbook.tasks.judge import Judge
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from tests.unit.tasks.typed_late import Late


class State:
    """What a rollout of `Whole` keeps."""


class Row(TaskData, frozen=True, kw_only=True):
    answer: int = 42


class Whole(Task[Row]):
    state_type = State

    @intercept
    def clean(self, request: Request, trace: Trace) -> Request:
        return request

    @intercept()
    async def polish(self, response: Annotated[Response, "the model's"]) -> Response:
        return response

    @stop
    def asked_enough(self, request: Request) -> bool:
        return False

    @stop(priority=3)
    async def said_enough(self, trace: Trace, response: Response) -> bool:
        return False

    @stop
    def long_enough(self, trace: Trace) -> bool:
        return False

    @metric
    def length(self, trace: Trace) -> int:
        return trace.num_turns

    @reward(weight=2)
    async def right(self, row: Row, kept: State, place: Runtime | None, /, trace, data, state) -> float:  # type: ignore[no-untyped-def]
        return 1.0


def names(hooks: tuple[Hook, ...]) -> list[str]:
    return [hook.name for hook in hooks]


def test_hooks_are_routed_by_the_annotated_type_alone() -> None:
    hooks = Whole.hooks
    assert names(hooks.request_interceptors) == ["clean"]
    assert names(hooks.response_interceptors) == ["polish"]
    assert names(hooks.request_stops) == ["asked_enough"]
    assert names(hooks.response_stops) == ["said_enough"]
    assert names(hooks.trace_stops) == ["long_enough"]
    assert names(hooks.metrics) == ["length"]
    assert names(hooks.rewards) == ["right"]


def test_parameters_get_what_their_type_or_else_their_name_says() -> None:
    [right] = Whole.hooks.rewards
    assert [(item.name, item.source) for item in right.parameters] == [
        ("row", "data"),
        ("kept", "state"),
        ("place", "runtime"),
        ("trace", "trace"),
        ("data", "data"),
        ("state", "state"),
    ]


def test_weight_and_priority_are_kept() -> None:
    assert [hook.weight for hook in Whole.hooks.rewards] == [2.0]
    assert [hook.priority for hook in Whole.hooks.response_stops] == [3]


def test_annotations_that_are_text_are_resolved_also_where_only_type_checkers_import_them() -> None:
    assert names(Late.hooks.request_interceptors) == ["rename"]
    assert names(Late.hooks.response_stops) == ["enough"]
    assert [item.source for item in Late.hooks.rewards[0].parameters] == ["data", "trace", "runtime"]


def test_order_is_priority_descending_then_name() -> None:
    class Ordered(Task[TaskData]):
        @stop
        def b(self, trace: Trace) -> bool:
            return False

        @stop(priority=-1)
        def a(self, trace: Trace) -> bool:
            return False

        @stop
        def aa(self, trace: Trace) -> bool:
            return False

        @stop(priority=5)
        def z(self, trace: Trace) -> bool:
            return False

    assert names(Ordered.hooks.trace_stops) == ["z", "aa", "b", "a"]


def test_inherited_hooks_count_and_an_override_replaces() -> None:
    class Mixed:
        @metric
        def mixed_in(self) -> float:
            return 1.0

    class Child(Mixed, Whole):
        @reward(weight=7)
        def right(self) -> float:  # type: ignore[override]  # another shape is what is tested
            return 0.0

        def length(self, trace: Trace) -> int:
            return 0

    assert names(Child.hooks.metrics) == ["mixed_in"]
    assert [(hook.name, hook.weight, hook.owner) for hook in Child.hooks.rewards] == [("right", 7.0, "Child")]
    assert names(Child.hooks.request_interceptors) == ["clean"]
    assert names(Whole.hooks.metrics) == ["length"]


def test_answers_are_held_back_only_for_hooks_that_look_at_them() -> None:
    class Asking(Task[TaskData]):
        @stop
        def enough(self, request: Request) -> bool:
            return False

    assert Whole.hooks.rewrites_responses
    assert Late.hooks.rewrites_responses
    assert not Asking.hooks.rewrites_responses


def none(self: Any) -> bool:
    return True


def of_data_alone(self: Any, data: TaskData) -> bool:
    return True


def two(self: Any, request: Request, response: Response) -> bool:
    return True


def twice(self: Any, first: Request, second: Request) -> bool:
    return True


def two_traces(self: Any, first: Trace, second: Trace) -> bool:
    return True


def trace_alone(self: Any, trace: Trace) -> Any: ...


def bare(self, request):  # type: ignore[no-untyped-def]
    return True


def bare_trace(self, trace):  # type: ignore[no-untyped-def]
    return True


def union(self: Any, request: Request | None) -> bool:
    return True


def other(self: Any, request: dict[str, Any]) -> bool:
    return True


def unknown(self: Any, request: "NoSuchType") -> bool:  # type: ignore[name-defined]  # noqa: F821
    return True


def splat(self: Any, *requests: Request) -> bool:
    return True


def selfless() -> bool:
    return True


def of_request(self: Any, request: Request) -> bool:
    return True


def generating(self: Any, trace: Trace) -> Iterator[bool]:
    yield True


@pytest.mark.parametrize(
    ("decorate", "method", "message"),
    [
        (stop, none, r"@stop Wrong.hook has no parameter that says when it is asked.*`request: Request`"),
        (stop, of_data_alone, r"@stop Wrong.hook has no parameter that says when it is asked"),
        (intercept, none, r"@intercept Wrong.hook has no parameter that says what it rewrites"),
        (stop, two, r"@stop Wrong.hook asks for Request and Response; keep one"),
        (intercept, two, r"@intercept Wrong.hook asks for Request and Response; keep one"),
        (intercept, twice, r"@intercept Wrong.hook asks for Request and Request; keep one"),
        (stop, two_traces, r"@stop Wrong.hook asks for Trace twice"),
        (intercept, trace_alone, r"@intercept Wrong.hook asks for a Trace alone; annotate one: `request: Request`"),
        (stop, bare, r"@stop Wrong.hook has no annotation for 'request'"),
        (intercept, bare, r"@intercept Wrong.hook has no annotation for 'request'"),
        (stop, bare_trace, r"@stop Wrong.hook has no parameter that says when it is asked"),
        (stop, union, r"@stop Wrong.hook annotates 'request' as "),
        (stop, other, r"@stop Wrong.hook annotates 'request' as dict"),
        (stop, unknown, r"@stop Wrong.hook annotates 'request' as 'NoSuchType', which cannot be resolved; import it"),
        (stop, splat, r"@stop Wrong.hook takes \*requests"),
        (reward, selfless, r"@reward Wrong.hook takes no self"),
        (reward, of_request, r"@reward Wrong.hook asks for a Request; scores are made of the whole"),
        (metric, of_request, r"@metric Wrong.hook asks for a Request"),
        (stop, generating, r"@stop Wrong.hook is no method that returns something"),
        (reward(weight=math.nan), trace_alone, r"@reward Wrong.hook has the weight nan"),
        (reward(weight=math.inf), trace_alone, r"@reward Wrong.hook has the weight inf"),
        (reward(weight="1"), trace_alone, r"@reward Wrong.hook has the weight '1'"),  # type: ignore[call-overload]
        (stop(priority=0.5), trace_alone, r"@stop Wrong.hook has the priority 0.5"),  # type: ignore[call-overload]
    ],
)
def test_hook_of_a_wrong_shape_is_refused_with_its_name_when_the_class_is_loaded(
    decorate: Callable[[Any], Any], method: Any, message: str
) -> None:
    def fresh() -> Any:
        return type(method)(method.__code__, method.__globals__, "hook", method.__defaults__, method.__closure__)

    hook = fresh()
    hook.__annotations__ = method.__annotations__
    with pytest.raises(TypeError, match=message):
        type("Wrong", (Task,), {"hook": decorate(hook)})


@pytest.mark.parametrize("wrap", [staticmethod, classmethod])
def test_hook_that_is_no_method_of_an_object_is_refused(wrap: Any) -> None:
    with pytest.raises(TypeError, match=r"@stop Wrong.hook is no method"):
        type("Wrong", (Task,), {"hook": stop(wrap(trace_alone))})


@pytest.mark.parametrize(
    "wrap", [property, functools.cached_property, functools.partialmethod], ids=lambda w: w.__name__
)
def test_mark_below_what_makes_no_method_of_it_is_refused_with_the_hooks_name(wrap: Any) -> None:
    def hook(self: Any, trace: Trace) -> bool:
        return False

    with pytest.raises(TypeError, match=rf"@stop Wrong.hook is a {wrap.__name__}, which is no method"):
        type("Wrong", (Task,), {"hook": wrap(stop(hook))})


def test_method_that_is_two_hooks_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Wrong.hook is @metric and @reward; a method is one hook"):

        class Wrong(Task[TaskData]):
            @metric
            @reward
            def hook(self) -> float:
                return 1.0


def test_wrong_shape_in_a_subclass_names_the_subclass() -> None:
    with pytest.raises(TypeError, match=r"@stop Wrong.long_enough"):

        class Wrong(Whole):
            @stop
            def long_enough(self) -> bool:  # type: ignore[override]  # what is tested
                return True


def test_wrong_shape_is_shown_where_its_author_wrote_it() -> None:
    with pytest.raises(TypeError) as caught:

        class Wrong(Task[TaskData]):
            @stop
            def long_enough(self) -> bool:
                return True

    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text == MARKED)
    assert str(caught.value).endswith(f" ({__file__}, line {line + 4})")


MARKED = "def test_wrong_shape_is_shown_where_its_author_wrote_it() -> None:"


def test_class_that_may_not_have_a_hook_says_what_it_may() -> None:
    class Measured(Hooked):
        hook_kinds = frozenset({"metric"})

    with pytest.raises(TypeError, match=r"@reward Wrong.good has no place in this class, which may have @metric"):

        class Wrong(Measured):
            @reward
            def good(self) -> float:
                return 1.0


def test_settings_given_by_position_are_refused() -> None:
    with pytest.raises(TypeError, match=r"@reward stands on a method; its settings are named"):
        reward(0.5)  # type: ignore[call-overload]  # what is tested


@pytest.mark.parametrize("taken", ["right", "length"])
def test_judge_with_the_name_of_a_score_is_refused(taken: str) -> None:
    with pytest.raises(TypeError, match=f"Wrong: the judge '{taken}' has the name of @"):
        type("Wrong", (Whole,), {"judges": (Judge(taken, "m", rubric="r"),)})


def test_two_judges_of_one_name_are_refused() -> None:
    judges = (Judge("style", "m", rubric="r"), Judge("style", "n", rubric="s"))
    with pytest.raises(TypeError, match="'style' has the name of another judge"):
        type("Wrong", (Whole,), {"judges": judges})
