"""Interceptors and stops at work: copies, what may be rewritten and what may not, who is asked and in which order."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.interception.messages import Request, Response
from rollbook.tasks.data import TaskData
from rollbook.tasks.errors import TaskError
from rollbook.tasks.hooks import intercept, stop
from rollbook.tasks.running import first_stop, run_request_interceptors, run_response_interceptors
from rollbook.tasks.task import Task
from rollbook.traces.calls import CallTokens, Usage
from rollbook.traces.trace import Rewrite, Trace
from tests.unit.tasks.support import WAIT_SEC, given_to

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "old"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "result"},
    {"role": "user", "content": "new"},
]
NEW = frozenset({3, 4})


def asked() -> Request:
    return Request(
        messages=copy.deepcopy(MESSAGES),
        tools=[{"type": "function", "function": {"name": "add"}}],
        model="m",
        params={"temperature": 1.0},
    )


def answered(**fields: Any) -> Response:
    message = {"role": "assistant", "content": "text", "reasoning_content": "hm", "tool_calls": [CALL]}
    return Response(
        **{
            "message": message,
            "finish_reason": "tool_calls",
            "usage": Usage(3, 4),
            "tokens": CallTokens([1], [2], [-0.5]),
            "model": "m",
            **fields,
        }
    )


class Hooks(Task[TaskData]):
    """Does what a test tells it to."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act


class OnRequest(Hooks):
    @intercept
    def hook(self, request: Request) -> Any:
        return self.act(request)


class OnResponse(Hooks):
    @intercept
    async def hook(self, response: Response) -> Any:
        return self.act(response)


async def requested(task: Task[Any], request: Request) -> tuple[Request, list[Rewrite]]:
    return await run_request_interceptors(task.hooks.request_interceptors, request, given_to(task), new=NEW)


async def responded(task: Task[Any], response: Response) -> tuple[Response, list[Rewrite]]:
    return await run_response_interceptors(task.hooks.response_interceptors, response, given_to(task), call=7)


def setting(*path: Any, to: Any) -> Callable[[Any], Any]:
    """A hook that changes one thing in place, and returns what it was given."""

    def act(value: Any) -> Any:
        target: Any = value
        for step in path[:-1]:
            target = target[step] if isinstance(target, (list, dict)) else getattr(target, step)
        if isinstance(target, (list, dict)):
            target[path[-1]] = to
        else:
            setattr(target, path[-1], to)
        return value

    return act


def silently(act: Callable[[Any], Any]) -> Callable[[Any], None]:
    def unreturned(value: Any) -> None:
        act(value)

    return unreturned


@pytest.mark.parametrize("returned", [True, False])
@pytest.mark.parametrize("index", [3, 4])
async def test_new_user_and_tool_messages_may_be_rewritten(index: int, *, returned: bool) -> None:
    act = setting("messages", index, "content", to="rewritten")
    request = asked()
    after, rewrites = await requested(OnRequest(act if returned else silently(act)), request)
    expected = {**MESSAGES[index], "content": "rewritten"}
    assert after.messages == [*MESSAGES[:index], expected, *MESSAGES[index + 1 :]]
    assert rewrites == [Rewrite("hook", "request", None, [MESSAGES[index]], [expected])]
    assert request == asked()


async def test_hook_that_keeps_its_copy_cannot_change_it_later() -> None:
    kept: list[Request] = []

    def act(request: Request) -> Request:
        request.messages[4]["content"] = [{"type": "text", "text": "rewritten"}]
        kept.append(request)
        return request

    after, rewrites = await requested(OnRequest(act), asked())
    kept[0].messages[4]["content"][0]["text"] = "later"
    kept[0].messages[0]["content"] = "later"
    assert after.messages[4]["content"] == [{"type": "text", "text": "rewritten"}]
    assert after.messages[0] == MESSAGES[0]
    assert rewrites[0].after == [{"role": "user", "content": [{"type": "text", "text": "rewritten"}]}]


async def test_hook_that_changes_nothing_leaves_no_rewrite() -> None:
    assert await requested(OnRequest(lambda request: request), asked()) == (asked(), [])
    assert await requested(OnRequest(lambda request: None), asked()) == (asked(), [])
    assert await responded(OnResponse(lambda response: response), answered()) == (answered(), [])


async def test_each_interceptor_gets_what_the_one_before_it_made() -> None:
    class Two(Task[TaskData]):
        @intercept(priority=1)
        def first(self, request: Request) -> None:
            request.messages[4]["content"] += " first"

        @intercept
        def second(self, request: Request) -> None:
            request.messages[4]["content"] += " second"

    after, rewrites = await requested(Two(), asked())
    assert after.messages[4]["content"] == "new first second"
    assert [(item.hook, item.before[0]["content"], item.after[0]["content"]) for item in rewrites] == [
        ("first", "new", "new first"),
        ("second", "new first", "new first second"),
    ]


def dropping(request: Request) -> None:
    del request.messages[4]


def appending(request: Request) -> None:
    request.messages.append({"role": "user", "content": "more"})


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (setting("messages", 1, "content", to="x"), "changed message 1, which an earlier turn has seen"),
        (setting("messages", 4, "role", to="system"), "changed the role of message 4"),
        (setting("messages", 4, "role", to="tool"), "changed the role of message 4"),
        (setting("messages", 3, "tool_call_id", to="c2"), "changed the tool_call_id of message 3"),
        (setting("messages", 4, "tool_calls", to=[CALL]), "changed tool_calls of message 4"),
        (setting("messages", 4, "content", to=None), "made the content of message 4 None"),
        (setting("messages", 4, "content", to=["x"]), "made the content of message 4"),
        (setting("messages", 4, "content", to=[{"x": object()}]), "gave message 4 a content without JSON form"),
        (setting("messages", 4, to="x"), "made message 4 'x'"),
        (setting("messages", to=[]), "added or removed messages"),
        (dropping, "added or removed messages"),
        (appending, "added or removed messages"),
        (setting("tools", to=None), "changed the request's tools"),
        (setting("tools", 0, "function", "name", to="sub"), "changed the request's tools"),
        (setting("model", to="n"), "changed the request's model"),
        (setting("params", "temperature", to=0.0), "changed the request's params"),
        (setting("streamed", to=True), "changed the request's streamed"),
        (lambda request: "x", "returned 'x' .*; have it return the Request, or nothing"),
        (lambda request: answered(), "returned Response.*; have it return the Request"),
    ],
)
async def test_what_a_request_interceptor_may_not_do_is_a_task_error_naming_it(
    act: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TaskError, match=f"@intercept OnRequest.hook {message}") as raised:
        await requested(OnRequest(act), asked())
    assert raised.value.hook == "hook"


@pytest.mark.parametrize("role", ["system", "assistant"])
async def test_new_messages_of_others_than_users_and_tools_stay(role: str) -> None:
    request = Request(messages=[{"role": role, "content": "x"}])
    task = OnRequest(setting("messages", 0, "content", to="y"))
    with pytest.raises(TaskError, match=f"changed message 0, which is a {role} message"):
        await run_request_interceptors(task.hooks.request_interceptors, request, given_to(task), new={0})


_EDITS: dict[str, list[dict[str, Any]]] = {
    "keep": [{}],
    "content": [{"content": "y"}],
    "role": [{"role": "user"}],
    "id": [{"tool_call_id": "d"}],
    "drop": [],
    "twice": [{}, {}],
}
"""What becomes of a message."""
_plans = st.lists(
    st.tuples(st.sampled_from(["user", "tool", "assistant"]), st.sampled_from(list(_EDITS))), min_size=1, max_size=5
)


@given(_plans, st.sets(st.integers(0, 4)))
def test_whatever_is_let_through_differs_in_texts_of_new_user_and_tool_messages_only(
    plan: list[tuple[str, str]], new: set[int]
) -> None:
    messages = [{"role": role, "tool_call_id": "c", "content": "x"} for role, _ in plan]
    made = [message | change for message, (_, edit) in zip(messages, plan, strict=True) for change in _EDITS[edit]]
    allowed = len(made) == len(messages) and all(
        after == before or (after == before | {"content": "y"} and before["role"] != "assistant" and index in new)
        for index, (before, after) in enumerate(zip(messages, made, strict=True))
    )
    task = OnRequest(lambda request: setattr(request, "messages", made))
    run = run_request_interceptors(task.hooks.request_interceptors, Request(messages=messages), given_to(task), new=new)
    if allowed:
        assert asyncio.run(run)[0].messages == made
    else:
        with pytest.raises(TaskError):
            asyncio.run(run)


@pytest.mark.parametrize("returned", [True, False])
async def test_rewritten_answer_ends_with_stop_and_has_no_tokens(*, returned: bool) -> None:
    act = setting("message", "content", to="rewritten")
    response = answered()
    after, rewrites = await responded(OnResponse(act if returned else silently(act)), response)
    message = {**answered().message, "content": "rewritten"}
    assert after == answered(message=message, finish_reason="stop", tokens=None)
    assert rewrites == [Rewrite("hook", "response", 7, [answered().message], [message])]
    assert response == answered()


async def test_interceptor_may_say_itself_that_its_text_ends_with_stop() -> None:
    def act(response: Response) -> Response:
        return msgspec.structs.replace(
            response, message=response.message | {"content": "rewritten"}, finish_reason="stop"
        )

    after, _ = await responded(OnResponse(act), answered(finish_reason="length"))
    assert (after.message["content"], after.finish_reason) == ("rewritten", "stop")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (setting("message", "tool_calls", to=[]), "changed tool_calls of the message"),
        (setting("message", "reasoning_content", to="ho"), "changed reasoning_content of the message"),
        (setting("message", "thinking_blocks", to=[{}]), "changed thinking_blocks of the message"),
        (setting("message", "role", to="user"), "changed role of the message"),
        (setting("message", "content", to=None), "made the content None"),
        (setting("message", to=None), "made the message None"),
        (setting("finish_reason", to="stop"), "changed the finish reason"),
        (setting("usage", to=None), "changed the response's usage"),
        (setting("tokens", to=None), "changed the response's tokens"),
        (setting("model", to="n"), "changed the response's model"),
        (lambda response: {}, "returned {}.*; have it return the Response, or nothing"),
    ],
)
async def test_what_a_response_interceptor_may_not_do_is_a_task_error_naming_it(
    act: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TaskError, match=f"@intercept OnResponse.hook {message}") as raised:
        await responded(OnResponse(act), answered())
    assert raised.value.hook == "hook"


class Stops(Task[TaskData]):
    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def answer(self, name: str) -> Any:
        self.asked.append(name)
        return self.answers.get(name, False)

    @stop
    async def of_request(self, request: Request) -> bool:
        request.messages.clear()
        return bool(self.answer("of_request"))

    @stop
    def of_response(self, response: Response) -> bool:
        return self.answer("of_response")  # type: ignore[no-any-return]  # tests answer with anything

    @stop(priority=1)
    def of_trace_first(self, trace: Trace) -> bool:
        return self.answer("of_trace_first")  # type: ignore[no-any-return]  # tests answer with anything

    @stop
    def of_trace(self, trace: Trace) -> bool:
        return bool(self.answer("of_trace")) and trace.num_turns == 1


async def test_first_stop_that_says_so_gives_its_name() -> None:
    task = Stops(of_trace=True)
    assert await first_stop(task.hooks.trace_stops, given_to(task)) == "of_trace"
    assert task.asked == ["of_trace_first", "of_trace"]
    task = Stops(of_trace=True, of_trace_first=True)
    assert await first_stop(task.hooks.trace_stops, given_to(task)) == "of_trace_first"
    assert task.asked == ["of_trace_first"]


async def test_no_stop_that_says_so_gives_none() -> None:
    task = Stops()
    assert await first_stop(task.hooks.trace_stops, given_to(task)) is None
    assert await first_stop((), given_to(task)) is None


async def test_stop_gets_a_copy() -> None:
    task, request = Stops(of_request=True), asked()
    assert await first_stop(task.hooks.request_stops, given_to(task), boundary=request) == "of_request"
    assert request == asked()


@pytest.mark.parametrize("answer", [None, 1, 0, "yes", [True]])
async def test_stop_that_returns_no_bool_is_a_task_error_naming_it(answer: Any) -> None:
    task = Stops(of_response=answer)
    with pytest.raises(TaskError, match=r"@stop Stops.of_response returned .*; have it return True or False") as raised:
        await first_stop(task.hooks.response_stops, given_to(task), boundary=answered())
    assert raised.value.hook == "of_response"


class Ouch(BaseException):
    """Worse than an exception."""


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("k"), TaskError("mine"), SystemExit(3), asyncio.CancelledError(), Ouch()]
)
async def test_hook_that_raises_is_a_task_error_naming_it(error: BaseException) -> None:
    def act(_: Any) -> None:
        raise error

    with pytest.raises(TaskError, match=r"@intercept OnRequest.hook") as raised:
        await requested(OnRequest(act), asked())
    assert raised.value.__cause__ is error
    assert raised.value.hook == "hook"


async def test_cancellation_from_outside_stays_one() -> None:
    begun = asyncio.Event()

    class Waiting(Task[TaskData]):
        @stop
        async def hook(self, trace: Trace) -> bool:
            begun.set()
            await asyncio.Event().wait()
            return True

    task = Waiting()
    running = asyncio.create_task(first_stop(task.hooks.trace_stops, given_to(task)))
    async with asyncio.timeout(WAIT_SEC):
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
