"""PROTOCOL, step: segments, the time budget, and whose fault an end was.

"one segment, from start until the program yields; False when not open, closed or not ok. New user messages pass the
request interceptors, and are not intercepted twice. The agent time budget is cumulative over segments and runs only
while a segment runs; waiting for a user costs nothing. Exceeding it is a failure of the agent, never a clean stop. A
segment that adds no turn ends the exchange without failure or stop condition. If a model call failed and no later one
succeeded, that error is recorded, whether the harness exited with an error or with 0. After a stop, harness exceptions
are ignored, an expired deadline excepted."
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rollbook.interception.messages import Request
from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.errors import RuntimeStoppedError
from rollbook.tasks.harnesses.base import Exchange
from rollbook.tasks.hooks import intercept, reward, stop
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.task import Task
from rollbook.traces.calls import ModelCall
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import PROMPT, SAID, WAIT_SEC, Acting, Agent, Stage, ask_once, played
from tests.support.model_server import Die, Hang, ModelServer, Raw, Reply, Say, Status

MORE = [{"role": "user", "content": "And 7 times 8?"}]


def budget(seconds: float) -> TaskData:
    """A task whose agent has so much time."""
    return TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(agent=seconds))


class Rewarded(Task[TaskData]):
    """Has a reward."""

    @reward
    def one(self) -> float:
        return 1.0


class BrokenProgramError(Exception):
    """What an agent of these tests ends with."""


async def test_step_runs_from_the_prompt_until_the_program_yields(stage: Stage) -> None:
    async with ModelServer(Say("42")) as model:
        rollout = stage.rollout(model)
        assert await rollout.open()
        assert await rollout.step() is True
        assert rollout.messages == [*SAID, {"role": "assistant", "content": "42"}]
        trace = await rollout.close()
    assert trace.ok
    assert trace.num_turns == 1
    assert trace.stop_condition is None


async def test_next_segment_starts_from_the_conversation_and_the_users_new_messages(stage: Stage) -> None:
    harness = Acting(ask_once)
    async with ModelServer(Say("42"), Say("56")) as model:
        rollout = stage.rollout(model, harness)
        await rollout.open()
        assert await rollout.step()
        assert await rollout.step(MORE)
        trace = await rollout.close()
        conversation = [*SAID, {"role": "assistant", "content": "42"}, *MORE]
        assert model.received[1].json["messages"] == conversation
    assert harness.agents[1].exchange.messages == conversation
    assert trace.final_branch is not None
    assert [message["content"] for message in trace.final_branch.messages] == [PROMPT, "42", MORE[0]["content"], "56"]
    assert len(trace.branches) == 1


async def test_step_is_false_before_open(stage: Stage) -> None:
    harness = Acting(ask_once)
    rollout = stage.rollout(None, harness)
    assert await rollout.step() is False
    assert harness.agents == []


async def test_step_is_false_after_close(stage: Stage) -> None:
    harness = Acting(ask_once)
    rollout = stage.rollout(None, harness)
    await rollout.open()
    await rollout.close()
    assert await rollout.step() is False
    assert harness.agents == []


async def test_step_is_false_once_something_failed(stage: Stage) -> None:
    async def breaks(agent: Agent) -> None:
        await agent.ask()
        raise BrokenProgramError("lost my way")

    harness = Acting(breaks)
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, harness)
        await rollout.open()
        assert await rollout.step() is False
        assert await rollout.step(MORE) is False
        trace = await rollout.close()
    assert len(harness.agents) == 1
    assert [(error.stage, error.type, error.message) for error in trace.errors] == [
        ("agent", "BrokenProgramError", "lost my way")
    ]


async def test_step_is_false_after_a_stop(stage: Stage) -> None:
    harness = Acting(ask_once)
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, harness, limits=RolloutLimits(max_turns=1))
        await rollout.open()
        assert await rollout.step() is True
        assert await rollout.step(MORE) is False
        assert await rollout.step(MORE) is False
        trace = await rollout.close()
    assert len(harness.agents) == 2
    assert trace.ok
    assert trace.stop_condition == "max_turns"


async def test_new_user_messages_pass_the_interceptors_once(stage: Stage) -> None:
    shown: list[list[str]] = []

    class Polite(Task[TaskData]):
        @intercept
        def please(self, request: Request) -> Request:
            shown.append([str(message["content"]) for message in request.messages])
            request.messages[-1]["content"] += "!"
            return request

    harness = Acting(ask_once)
    async with ModelServer(Say("42"), Say("56")) as model:
        rollout = stage.rollout(model, harness, task=Polite())
        await rollout.open()
        await rollout.step()
        await rollout.step(MORE)
        trace = await rollout.close()
        assert trace.errors == []
        assert [message["content"] for message in model.received[1].json["messages"]] == [
            f"{PROMPT}!",
            "42",
            "And 7 times 8?!",
        ]
    assert shown == [[PROMPT], [f"{PROMPT}!", "42", "And 7 times 8?"]]
    assert [rewrite.after[0]["content"] for rewrite in trace.request_rewrites] == [f"{PROMPT}!", "And 7 times 8?!"]


async def test_two_equal_messages_of_a_user_each_pass_the_interceptors(stage: Stage) -> None:
    class Counted(Task[TaskData]):
        @intercept
        def number(self, request: Request) -> None:
            users = [message for message in request.messages if message["role"] == "user"]
            users[-1]["content"] += f" ({len(users)})"

    async with ModelServer(default=Say("ok")) as model:
        rollout = stage.rollout(model, Acting(ask_once), task=Counted())
        await rollout.open()
        for _ in range(3):
            await rollout.step([{"role": "user", "content": "again"}])
        trace = await rollout.close()
        assert trace.errors == []
        users = [message["content"] for message in model.received[2].json["messages"] if message["role"] == "user"]
    assert users == [f"{PROMPT} (1)", "again (2)", "again (3)", "again (4)"]


async def test_interceptor_that_breaks_a_rule_on_a_users_message_fails_the_agent_stage(stage: Stage) -> None:
    class Rude(Task[TaskData]):
        @intercept
        def shorten(self, request: Request) -> None:
            if len(request.messages) > 1:
                del request.messages[0]

    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, task=Rude())
        await rollout.open()
        assert await rollout.step()
        assert await rollout.step(MORE) is False
        trace = await rollout.close()
        assert len(model.received) == 1
    assert [(error.stage, error.type) for error in trace.errors] == [("agent", "TaskError")]


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_budget_runs_only_while_a_segment_runs(stage: Stage) -> None:
    clock = Clock()

    async def play(agent: Agent) -> None:
        clock.now += 10
        await agent.ask()

    harness = Acting(play)
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, harness, data=budget(100), clock=clock)
        clock.now += 1000  # before it is opened
        await rollout.open()
        clock.now += 1000
        assert rollout.spent_sec == 0
        assert await rollout.step()
        assert rollout.spent_sec == 10
        clock.now += 1000  # a user thinks
        assert rollout.spent_sec == 10
        assert await rollout.step(MORE)
        assert rollout.spent_sec == 20
        clock.now += 1000
        trace = await rollout.close()
    assert trace.ok
    assert [agent.exchange.remaining_sec for agent in harness.agents] == [100, 90]


async def test_second_segment_has_what_the_first_left(stage: Stage) -> None:
    clock = Clock()

    async def takes_nearly_all(agent: Agent) -> None:
        await agent.ask()
        clock.now += 3599.9

    async with ModelServer(Say(), Hang()) as model:
        rollout = stage.rollout(model, Acting(takes_nearly_all, ask_once), data=budget(3600), clock=clock)
        await rollout.open()
        assert await rollout.step()
        async with asyncio.timeout(WAIT_SEC):  # a tenth of a second, not another hour
            assert await rollout.step(MORE) is False
        trace = await rollout.close()
    [error] = trace.errors
    assert (error.type, error.category) == ("TimeoutError", "timeout")
    assert error.message.startswith("the agent exceeded its budget of 3600s")


async def test_segment_that_went_on_after_its_time_was_over_is_late_although_it_ended_well(stage: Stage) -> None:
    clock = Clock()

    async def blocks(agent: Agent) -> None:
        await agent.ask()
        clock.now += 101

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Acting(blocks), data=budget(100), clock=clock))
    assert [error.category for error in trace.errors] == ["timeout"]


async def test_model_that_hangs_past_the_budget_is_a_failure_of_the_agent_and_no_stop(stage: Stage) -> None:
    async with ModelServer(Say("thinking"), Hang()) as model:

        async def play(agent: Agent) -> None:
            await agent.ask()
            await agent.ask({"role": "user", "content": "go on"})

        rollout = stage.rollout(model, Acting(play), task=Rewarded(), data=budget(0.5))
        await rollout.open()
        assert await rollout.step() is False
        trace = await rollout.close()
        await asyncio.wait_for(model.received[1].hung_up.wait(), WAIT_SEC)
    [error] = trace.errors
    assert (error.stage, error.type, error.category) == ("agent", "TimeoutError", "timeout")
    assert error.message == "the agent exceeded its budget of 0.5s while the model had not answered a model call"
    assert trace.stop_condition is None
    assert not trace.ok
    assert trace.rewards == {}
    assert [call.error.kind if call.error else None for call in trace.calls] == [None, "aborted"]


async def test_agent_that_swallows_its_deadline_is_late_all_the_same(stage: Stage) -> None:
    async def stubborn(agent: Agent) -> None:
        try:
            await agent.ask()
        except asyncio.CancelledError:
            return  # as if nothing had happened

    async with ModelServer(Hang()) as model:
        trace = await played(stage.rollout(model, Acting(stubborn), data=budget(0.1)))
    assert [(error.type, error.category) for error in trace.errors] == [("TimeoutError", "timeout")]


async def test_timeout_that_the_program_raised_itself_keeps_its_own_words(stage: Stage) -> None:
    async def gives_up(agent: Agent) -> None:
        raise TimeoutError("the tests took too long")

    trace = await played(stage.rollout(None, Acting(gives_up), data=budget(WAIT_SEC)))
    assert [(error.message, error.category) for error in trace.errors] == [("the tests took too long", "timeout")]


async def test_segment_without_a_turn_ends_the_exchange_without_failure_or_stop_condition(stage: Stage) -> None:
    async def idle(agent: Agent) -> None:
        return None

    harness = Acting(ask_once, idle)
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, harness, task=Rewarded())
        await rollout.open()
        assert await rollout.step() is True
        assert await rollout.step(MORE) is False
        assert await rollout.step(MORE) is False
        trace = await rollout.close()
    assert len(harness.agents) == 2
    assert trace.ok
    assert trace.errors == []
    assert trace.stop_condition is None
    assert trace.rewards == {"one": 1.0}


CAUSES: dict[str, tuple[Reply, str, str]] = {
    "error status": (Status(503), "HTTP 503: scripted error", "http"),
    "too many requests": (Status(429), "HTTP 429: scripted error", "http"),
    "hangs up": (Die(), "the model server hung up", "connect"),
    "dies in the middle": (Die(after=2), "the model server hung up in the middle of its answer", "broken_stream"),
    "garbage": (Raw([b'{"choices": "none"}']), "", "garbage"),
}


@pytest.mark.parametrize("ends", ["with 0", "with an error"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("cause", CAUSES)
async def test_model_call_that_failed_is_the_cause_however_the_program_ends(
    stage: Stage, cause: str, streamed: bool, ends: str
) -> None:
    reply, text, kind = CAUSES[cause]
    if cause == "hangs up" and not streamed:
        kind, text = "broken_stream", "the model server hung up in the middle of its answer"  # of a plain one

    async def play(agent: Agent) -> None:
        await agent.ask()
        try:
            await agent.ask({"role": "user", "content": "go on"}, streamed=streamed)
        except Exception:  # a broken stream, or what is no chat completion: a careless agent goes on
            agent.messages.clear()
        if ends == "with an error":
            raise BrokenProgramError("could not go on")

    # The same again and again: where a connection was used before, the endpoint may try another one.
    async with ModelServer(Say(), default=reply) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Rewarded()))
    error = trace.errors[0]
    assert (error.stage, error.type, error.category) == ("agent", "ModelCallError", "http_error")
    assert text in error.message
    assert [later.message for later in trace.errors[1:]] == (["could not go on"] if ends == "with an error" else [])
    assert [call.error.kind if call.error else None for call in trace.calls] == [None, kind]
    assert not trace.ok
    assert trace.rewards == {}
    assert trace.num_turns == 1


async def test_stream_that_says_garbage_is_the_cause(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        try:
            await agent.ask(streamed=True)
        except ValueError:
            return

    async with ModelServer(
        Raw([b"data: not json\n\n", b"data: [DONE]\n\n"], content_type="text/event-stream")
    ) as model:
        trace = await played(stage.rollout(model, Acting(play)))
    assert [call.error.kind if call.error else None for call in trace.calls] == ["garbage"]
    assert trace.errors[0].type == "ModelCallError"


async def test_model_that_cannot_be_reached_is_the_cause(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        assert (await agent.ask()).status == 502

    trace = await played(stage.rollout(None, Acting(play)))
    [error] = trace.errors
    assert (error.type, error.category) == ("ModelCallError", "http_error")
    assert "cannot connect to the model server" in error.message


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_429_then_200_is_no_failure(stage: Stage, streamed: bool) -> None:
    async def retries(agent: Agent) -> None:
        while (await agent.ask(streamed=streamed)).status == 429:
            pass

    async with ModelServer(Status(429, headers={"Retry-After": "0"}), Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(retries), task=Rewarded()))
    assert trace.ok
    assert trace.errors == []
    assert trace.rewards == {"one": 1.0}
    assert [call.error.status if call.error else 200 for call in trace.calls] == [429, 200]
    assert trace.num_turns == 1
    assert len(trace.branches) == 1


async def test_failed_call_of_an_earlier_segment_that_a_later_one_made_good_is_none(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        assert (await agent.ask()).status == 500
        assert (await agent.ask()).status == 200

    async with ModelServer(Say(), Status(500), Say(), Say()) as model:
        rollout = stage.rollout(model, Acting(play, ask_once))
        await rollout.open()
        assert await rollout.step()
        assert await rollout.step(MORE)
        assert (await rollout.close()).ok


async def test_program_error_after_calls_that_went_well_is_the_programs_own(stage: Stage) -> None:
    async def breaks(agent: Agent) -> None:
        assert (await agent.ask()).status == 500
        assert (await agent.ask()).status == 200
        raise BrokenProgramError("cannot parse this")

    async with ModelServer(Status(500), Say()) as model:
        trace = await played(stage.rollout(model, Acting(breaks)))
    assert [error.type for error in trace.errors] == ["BrokenProgramError"]


@pytest.mark.parametrize("raises", [BrokenProgramError, SystemExit, TimeoutError, asyncio.CancelledError])
async def test_after_a_stop_what_the_program_raises_is_ignored(
    stage: Stage, raises: Callable[[], BaseException]
) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        assert (await agent.ask()).status == 400
        raise raises()

    async with ModelServer(default=Say()) as model:
        limits = RolloutLimits(max_turns=1)
        trace = await played(stage.rollout(model, Acting(play), task=Rewarded(), limits=limits))
    assert trace.errors == []
    assert trace.ok
    assert trace.stop_condition == "max_turns"
    assert trace.rewards == {"one": 1.0}


async def test_after_a_stop_an_expired_deadline_is_not_ignored(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        assert (await agent.ask()).status == 400
        await asyncio.Event().wait()

    async with ModelServer(default=Say()) as model:
        limits = RolloutLimits(max_turns=1)
        trace = await played(stage.rollout(model, Acting(play), task=Rewarded(), limits=limits, data=budget(1.0)))
    assert trace.stop_condition == "max_turns"
    assert [(error.type, error.category) for error in trace.errors] == [("TimeoutError", "timeout")]
    assert not trace.ok
    assert trace.rewards == {}


async def test_after_a_stop_a_call_that_failed_before_and_was_not_made_good_is_not_ignored(stage: Stage) -> None:
    class Impatient(Rewarded):
        @stop
        def after_a_failure(self, trace: Trace) -> bool:
            return any(call.error for call in trace.calls)

    async def play(agent: Agent) -> None:
        await agent.ask()
        assert (await agent.ask()).status == 500
        assert (await agent.ask()).status == 400
        raise BrokenProgramError

    async with ModelServer(Say(), Status(500), Say()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Impatient()))
    assert trace.stop_condition == "after_a_failure"
    assert [(error.type, error.category) for error in trace.errors] == [("ModelCallError", "http_error")]
    assert not trace.ok
    assert trace.rewards == {}


async def test_after_a_stop_a_failed_call_that_was_made_good_is_none(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        assert (await agent.ask()).status == 500
        assert (await agent.ask()).status == 200
        assert (await agent.ask()).status == 400

    async with ModelServer(Status(500), Say()) as model:
        trace = await played(stage.rollout(model, Acting(play), limits=RolloutLimits(max_turns=1)))
    assert trace.ok


async def test_messages_that_a_program_returns_count_where_it_made_no_call(stage: Stage) -> None:
    answer: MessageDict = {"role": "assistant", "content": "42, from memory"}

    async def remembers(agent: Agent) -> list[MessageDict]:
        return [*SAID, answer]

    trace = await played(stage.rollout(None, Acting(remembers), task=Rewarded()))
    assert trace.ok
    assert trace.final_branch is not None
    assert trace.final_branch.messages == [*SAID, answer]
    assert trace.num_turns == 0
    assert not any(node.sampled for node in trace.nodes)


async def test_borrowed_runtime_stopped_during_a_segment_raises_and_is_not_recorded(stage: Stage) -> None:
    lent = stage.runtime()
    await lent.start()

    async def play(agent: Agent) -> None:
        await agent.ask()
        await lent.stop()
        await agent.exchange.runtime.run(["true"])

    async with ModelServer(Say()) as model:
        rollout = stage.rollout(model, Acting(play), task=Rewarded(), runtime=lent)
        await rollout.open()
        with pytest.raises(RuntimeStoppedError):
            await rollout.step()
        assert rollout.trace.errors == []
        assert await rollout.step() is False
        with pytest.raises(RuntimeStoppedError):
            await rollout.close()
    assert [error.type for error in rollout.trace.errors] == ["RuntimeStoppedError"], "by close, for the trace"
    assert rollout.trace.num_turns == 1
    assert stage.left_behind == []


async def test_borrowed_runtime_stopped_between_segments_raises_before_the_program_starts(stage: Stage) -> None:
    lent = stage.runtime()
    await lent.start()
    harness = Acting(ask_once)
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, harness, runtime=lent)
        await rollout.open()
        assert await rollout.step()
        await lent.stop()
        with pytest.raises(RuntimeStoppedError):
            await rollout.step(MORE)
        assert rollout.trace.errors == []
        with pytest.raises(RuntimeStoppedError):
            await rollout.close()
    assert len(harness.agents) == 1


async def test_harness_that_cannot_resume_says_so_at_the_second_segment(stage: Stage) -> None:
    class Once(Acting):
        resumes = False

    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, Once(ask_once))
        await rollout.open()
        assert await rollout.step()
        assert await rollout.step(MORE) is False
        trace = await rollout.close()
    assert "cannot take up a conversation again" in trace.errors[0].message


async def test_exchange_tells_the_program_where_the_model_is_and_what_is_left(stage: Stage) -> None:
    seen: list[Exchange] = []

    async def play(agent: Agent) -> None:
        seen.append(agent.exchange)

    trace = await played(stage.rollout(None, Acting(play), data=budget(WAIT_SEC)))
    [exchange] = seen
    assert exchange.base_url == f"{exchange.chat_url}/v1"
    assert exchange.api_key in exchange.chat_url
    assert exchange.remaining_sec is not None
    assert exchange.remaining_sec <= WAIT_SEC
    assert isinstance(trace, Trace)


def _kind(call: ModelCall) -> str | None:
    return None if call.error is None else call.error.kind
