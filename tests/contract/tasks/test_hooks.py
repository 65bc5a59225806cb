"""PROTOCOL, hooks: what they are routed by, what they may change, what becomes of what they say.

"`@intercept` on Request or Response, `@stop` on Request, Response or Trace, routed by the annotated parameter type
alone; a Trace beside a Request or Response is allowed and is not the boundary; none, two, or Trace alone for an
interceptor → `TypeError` naming the hook, when the class is loaded. Request and Response are copies. Request
interceptors may rewrite only new user or tool messages (no adding, removing, retyping, no tool-call-id change, no tool
change); response interceptors only the assistant text: no tool calls, reasoning or provider state; the finish reason
becomes "stop"; recorded in `response_rewrites`. Violations and a `@stop` that returns no bool are `TaskError`s. Stops
run after interceptors: a request stop commits the prompt, a response stop commits the turn, then refuses. Order:
priority descending, then name."
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from rollbook.interception.messages import Request, Response
from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import intercept, reward, stop
from rollbook.tasks.task import Task
from rollbook.traces.trace import Rewrite, Trace
from rollbook_client.events import ExchangeStopped, MessageRewritten
from tests.contract.tasks.playing import PROMPT, SAID, Acting, Agent, Got, Stage, ask_once, ask_times, played
from tests.support.model_server import ModelServer, Say

MORE: MessageDict = {"role": "user", "content": "go on"}
CALL = ("call-1", "look", '{"at": "it"}')
RESULT: MessageDict = {"role": "tool", "tool_call_id": "call-1", "content": "a secret"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


async def look_once(agent: Agent) -> None:
    """Ask, be told to call a tool, and answer with its result."""
    await agent.ask(tools=[LOOK])
    await agent.ask(RESULT, tools=[LOOK])


# Routing


async def test_hooks_are_routed_by_the_annotated_type_alone(stage: Stage) -> None:
    seen: list[str] = []

    class Routed(Task[TaskData]):
        @intercept
        def response(self, anything: Request) -> None:
            seen.append(f"intercept request {len(anything.messages)}")

        @intercept
        def request(self, other: Response) -> None:
            seen.append(f"intercept response {other.message['content']}")

        @stop
        def trace(self, it: Request) -> bool:
            seen.append("stop request")
            return False

        @stop
        def answer(self, it: Response) -> bool:
            seen.append("stop response")
            return False

        @stop
        def before(self, it: Trace) -> bool:
            seen.append(f"stop trace {it.num_turns}")
            return False

    async with ModelServer(default=Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(ask_times(2)), task=Routed()))
    assert trace.errors == []
    turn = ["stop request", "intercept response 42", "stop response"]
    assert seen == [
        "intercept request 1",  # the prompt, when the rollout opens
        "stop trace 0",
        *turn,
        "stop trace 1",
        "intercept request 3",
        *turn,
    ]


@pytest.mark.parametrize("side", ["request", "response"])
async def test_trace_beside_a_boundary_is_given_and_is_not_the_boundary(stage: Stage, side: str) -> None:
    turns: list[int] = []

    class OnRequest(Task[TaskData]):
        @stop
        def enough(self, trace: Trace, request: Request) -> bool:
            turns.append(trace.num_turns)
            return bool(request.messages[-1]["content"] == "go on, 1")

    class OnResponse(Task[TaskData]):
        @stop
        def enough(self, trace: Trace, response: Response) -> bool:
            turns.append(trace.num_turns)
            return trace.num_turns == 2

    task = OnRequest() if side == "request" else OnResponse()
    async with ModelServer(default=Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(ask_times(3)), task=task))
    assert trace.stop_condition == "enough"
    assert turns == ([0, 1] if side == "request" else [1, 2])


def _none(self: Any, data: TaskData) -> bool:
    return True


def _two(self: Any, request: Request, response: Response) -> bool:
    return True


def _trace(self: Any, trace: Trace) -> None:
    return None


def _bare(self: Any, request) -> bool:  # type: ignore[no-untyped-def]  # the fault that is looked for
    return True


@pytest.mark.parametrize(
    ("decorator", "method"),
    [(stop, _none), (intercept, _none), (stop, _two), (intercept, _two), (intercept, _trace), (stop, _bare)],
    ids=["stop-none", "intercept-none", "stop-two", "intercept-two", "intercept-trace-alone", "stop-no-annotation"],
)
def test_hook_of_a_wrong_shape_is_refused_when_its_class_is_loaded(
    decorator: Callable[[Any], Any], method: Callable[..., Any]
) -> None:
    def shape(*args: Any) -> Any:
        return method(*args)

    shape.__signature__ = inspect.signature(method, eval_str=True)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Wrong\.shape"):
        type("Wrong", (Task,), {"shape": decorator(shape)})


# Copies and rules


async def test_request_and_response_are_copies(stage: Stage) -> None:
    class Messy(Task[TaskData]):
        @stop
        def scribbles(self, request: Request) -> bool:
            request.messages[-1]["content"] = "scribbled"
            request.messages.append({"role": "user", "content": "more"})
            request.params["temperature"] = 2
            return False

        @stop
        def scribbles_too(self, response: Response) -> bool:
            response.message["content"] = "scribbled"
            return False

    got: list[Got] = []

    async def play(agent: Agent) -> None:
        got.append(await agent.ask(temperature=0.5))

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Messy()))
        assert model.received[0].json["messages"] == SAID
        assert model.received[0].json["temperature"] == 0.5
    assert got[0].text == "42"
    assert trace.final_branch is not None
    assert [message["content"] for message in trace.final_branch.messages] == [PROMPT, "42"]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_request_interceptor_rewrites_new_tool_messages_and_the_model_gets_the_new_text(
    stage: Stage, streamed: bool
) -> None:
    class Redacts(Task[TaskData]):
        @intercept
        def hide(self, request: Request) -> Request:
            for message in request.messages:
                if message["role"] == "tool":
                    message["content"] = message["content"].replace("secret", "[hidden]")
            return request

    async def play(agent: Agent) -> None:
        await agent.ask(tools=[LOOK])
        await agent.ask(RESULT, tools=[LOOK], streamed=streamed)

    async with ModelServer(Say(None, tool_calls=[CALL]), Say("done")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Redacts()))
        assert model.received[1].json["messages"][-1] == RESULT | {"content": "a [hidden]"}
    assert trace.request_rewrites == [
        Rewrite("hide", "request", None, before=[RESULT], after=[RESULT | {"content": "a [hidden]"}])
    ]
    assert trace.final_branch is not None
    assert trace.final_branch.messages[-2]["content"] == "a [hidden]"
    [told] = stage.tells(MessageRewritten)
    assert (told.hook, told.side) == ("hide", "request")


def _adds(request: Request) -> None:
    request.messages.append({"role": "user", "content": "one more"})


def _removes(request: Request) -> None:
    del request.messages[0]


def _retypes(request: Request) -> None:
    request.messages[-1]["role"] = "user"


def _other_call(request: Request) -> None:
    request.messages[-1]["tool_call_id"] = "call-2"


def _no_tools(request: Request) -> None:
    request.tools = None


def _other_history(request: Request) -> None:
    request.messages[0]["content"] = "What was it again?"


def _other_answer(request: Request) -> None:
    request.messages[1]["content"] = "put into its mouth"


def _other_model(request: Request) -> None:
    request.model = "a cheaper one"


def _raises(request: Request) -> None:
    raise KeyError("who")


@pytest.mark.parametrize(
    "breach",
    [_adds, _removes, _retypes, _other_call, _no_tools, _other_history, _other_answer, _other_model, _raises],
)
async def test_request_interceptor_that_does_more_is_a_task_error(
    stage: Stage, breach: Callable[[Request], None]
) -> None:
    class Breaks(Task[TaskData]):
        @intercept
        def meddle(self, request: Request) -> None:
            if request.messages[-1]["role"] == "tool":
                breach(request)

    harness = Acting(look_once)
    async with ModelServer(Say(None, tool_calls=[CALL]), Say("done")) as model:
        trace = await played(stage.rollout(model, harness, task=Breaks()))
        assert len(model.received) == 1, "the model got a request that broke the rules"
    [error] = trace.errors
    assert (error.stage, error.type, error.category) == ("agent", "TaskError", "validation_error")
    assert "@intercept Breaks.meddle" in error.message
    assert harness.agents[0].got[1].status == 400
    assert harness.agents[0].got[1].error == "rollout stopped: meddle"
    assert trace.stop_condition is None
    assert not trace.ok


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_response_interceptor_rewrites_the_text_and_the_finish_reason_becomes_stop(
    stage: Stage, streamed: bool
) -> None:
    class Cuts(Task[TaskData]):
        @intercept
        def cut(self, response: Response) -> Response:
            response.message["content"] = "cut off"
            return response

    async def play(agent: Agent) -> None:
        await agent.ask(streamed=streamed)

    harness = Acting(play)
    async with ModelServer(Say("a very long answer", finish_reason="length", logprobs=[-0.1, -0.2])) as model:
        trace = await played(stage.rollout(model, harness, task=Cuts()))
    [got] = harness.agents[0].got
    assert (got.text, got.finish_reason) == ("cut off", "stop")
    [rewrite] = trace.response_rewrites
    assert (rewrite.hook, rewrite.side, rewrite.call) == ("cut", "response", 1)
    assert (rewrite.before[0]["content"], rewrite.after[0]["content"]) == ("a very long answer", "cut off")
    assert trace.final_branch is not None
    assert trace.final_branch.messages[-1]["content"] == "cut off"
    [told] = stage.tells(MessageRewritten)
    assert (told.hook, told.side, told.call) == ("cut", "response", 1)


def _other_tools(response: Response) -> None:
    response.message["tool_calls"] = []


def _other_reasoning(response: Response) -> None:
    response.message["reasoning_content"] = "because"


def _other_state(response: Response) -> None:
    response.message["provider_specific_fields"] = {"signature": "forged"}


def _other_role(response: Response) -> None:
    response.message["role"] = "user"


def _other_usage(response: Response) -> None:
    response.usage = None


def _other_reason(response: Response) -> None:
    response.finish_reason = "content_filter"


def _raises_too(response: Response) -> None:
    raise KeyError("who")


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    "breach", [_other_tools, _other_reasoning, _other_state, _other_role, _other_usage, _other_reason, _raises_too]
)
async def test_response_interceptor_that_does_more_is_a_task_error_and_the_turn_is_kept(
    stage: Stage, breach: Callable[[Response], None], streamed: bool
) -> None:
    class Breaks(Task[TaskData]):
        @intercept
        def meddle(self, response: Response) -> None:
            breach(response)

    async def play(agent: Agent) -> None:
        await agent.ask(streamed=streamed, tools=[LOOK])
        await agent.ask()

    harness = Acting(play)
    async with ModelServer(default=Say("a", tool_calls=[CALL], reasoning="so")) as model:
        trace = await played(stage.rollout(model, harness, task=Breaks()))
        assert len(model.received) == 1
    [error] = trace.errors
    assert (error.type, error.category) == ("TaskError", "validation_error")
    assert "@intercept Breaks.meddle" in error.message
    assert [got.status for got in harness.agents[0].got] == [400, 400]
    assert [call.error for call in trace.calls] == [None], "the answer came, and was paid for"
    assert trace.num_output_tokens == 3
    assert trace.response_rewrites == []


@pytest.mark.parametrize("side", ["request", "response", "trace"])
async def test_stop_that_returns_no_bool_is_a_task_error(stage: Stage, side: str) -> None:
    class OnRequest(Task[TaskData]):
        @stop
        def perhaps(self, request: Request) -> bool:
            return None  # type: ignore[return-value]  # the fault that is looked for

    class OnResponse(Task[TaskData]):
        @stop
        def perhaps(self, response: Response) -> bool:
            return 1  # type: ignore[return-value]

    class OnTrace(Task[TaskData]):
        @stop
        def perhaps(self, trace: Trace) -> bool:
            return "no"  # type: ignore[return-value]

    task = {"request": OnRequest, "response": OnResponse, "trace": OnTrace}[side]()
    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, task=task))
    [error] = trace.errors
    assert (error.stage, error.type) == ("agent", "TaskError")
    assert ".perhaps" in error.message
    assert trace.stop_condition is None
    assert not trace.ok


async def test_task_error_of_a_hook_is_told_although_the_program_swallows_it(stage: Stage) -> None:
    class Breaks(Task[TaskData]):
        @stop
        def broken(self, trace: Trace) -> bool:
            raise ZeroDivisionError("turns per second")

        @reward
        def never(self) -> float:
            raise AssertionError("a failed rollout was scored")

    async with ModelServer() as model:
        trace = await played(stage.rollout(model, Acting(ask_once), task=Breaks()))
        assert model.received == []
    assert "Breaks.broken raised ZeroDivisionError: turns per second" in trace.errors[0].message
    assert trace.rewards == {}


# Stops


async def test_stops_run_after_interceptors(stage: Stage) -> None:
    class Both(Task[TaskData]):
        @intercept
        def rewrite(self, request: Request) -> None:
            request.messages[-1]["content"] = "rewritten"

        @stop
        def on_rewritten(self, request: Request) -> bool:
            return bool(request.messages[-1]["content"] == "rewritten")

    class BothAfter(Task[TaskData]):
        @intercept
        def rewrite(self, response: Response) -> None:
            response.message["content"] = "rewritten"

        @stop
        def on_rewritten(self, response: Response) -> bool:
            return bool(response.message["content"] == "rewritten")

    for task in (Both(), BothAfter()):
        async with ModelServer(default=Say()) as model:
            trace = await played(stage.rollout(model, task=task))
        assert trace.stop_condition == "on_rewritten"
        assert trace.ok


async def test_request_stop_commits_the_prompt_and_refuses_the_turn(stage: Stage) -> None:
    class Stops(Task[TaskData]):
        @stop
        def no_more(self, request: Request) -> bool:
            return bool(request.messages[-1]["content"] == "go on")

        @reward
        def one(self) -> float:
            return 1.0

    async def play(agent: Agent) -> None:
        await agent.ask()
        assert (await agent.ask(MORE)).error == "rollout stopped: no_more"
        assert (await agent.ask(MORE)).status == 400

    async with ModelServer(default=Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Stops()))
        assert len(model.received) == 1
    assert trace.stop_condition == "no_more"
    assert stage.tells(ExchangeStopped) == [ExchangeStopped(attempt=0, condition="no_more")]
    assert trace.final_branch is not None
    assert trace.final_branch.messages[-1] == MORE
    assert trace.num_turns == 1
    assert trace.ok
    assert trace.rewards == {"one": 1.0}
    assert not trace.is_truncated


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_response_stop_commits_the_turn_then_refuses(stage: Stage, streamed: bool) -> None:
    class Stops(Task[TaskData]):
        @stop
        def solved(self, response: Response) -> bool:
            return "42" in response.message["content"]

    harness = Acting(ask_times(3, streamed=streamed))
    async with ModelServer(Say("hm"), Say("it is 42"), Say("never")) as model:
        trace = await played(stage.rollout(model, harness, task=Stops()))
        assert len(model.received) == 2
    assert harness.agents[0].got[1].status == 400
    assert harness.agents[0].got[1].error == "rollout stopped: solved"
    assert trace.stop_condition == "solved"
    assert trace.num_turns == 2
    assert trace.final_branch is not None
    assert trace.final_branch.messages[-1]["content"] == "it is 42"


async def test_trace_stop_refuses_before_the_turn(stage: Stage) -> None:
    class Stops(Task[TaskData]):
        @stop
        async def two_turns(self, trace: Trace) -> bool:
            return trace.num_turns >= 2

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Acting(ask_times(5)), task=Stops()))
        assert len(model.received) == 2
    assert trace.stop_condition == "two_turns"
    assert trace.ok


async def test_order_is_priority_descending_then_name(stage: Stage) -> None:
    class Ordered(Task[TaskData]):
        @intercept
        def b(self, request: Request) -> None:
            request.messages[-1]["content"] += " b"

        @intercept
        def a(self, request: Request) -> None:
            request.messages[-1]["content"] += " a"

        @intercept(priority=5)
        def z(self, request: Request) -> None:
            request.messages[-1]["content"] += " z"

        @intercept(priority=-1)
        def first_by_name(self, request: Request) -> None:
            request.messages[-1]["content"] += " last"

        @stop
        def y(self, trace: Trace) -> bool:
            return True

        @stop(priority=1)
        def x(self, trace: Trace) -> bool:
            return True

    trace = await played(stage.rollout(None, task=Ordered()))
    assert [rewrite.hook for rewrite in trace.request_rewrites] == ["z", "a", "b", "first_by_name"]
    assert trace.request_rewrites[-1].after[0]["content"] == f"{PROMPT} z a b last"
    assert trace.stop_condition == "x"
