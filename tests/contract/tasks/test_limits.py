"""PROTOCOL, limits: which turn each of the four refuses, by usage that comes back from the model, plain and streamed.

"`max_turns`, `max_input_tokens`, `max_output_tokens`, `max_total_tokens`, in this order, `>=`, before each turn is
served and before trace stops; the turn that crosses a token limit completes (soft by one turn). The *name* of the
limit or hook becomes `stop_condition`; the program gets HTTP 400 "rollout stopped: NAME". Per branch of the message
graph, each call once, calls without usage skipped: input = Σ max(0, input tokens incl. cache reads − previous call's
total); output = Σ output; total = the last call's total; summed over branches."
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward, stop
from rollbook.tasks.limits import LIMIT_NAMES, RolloutLimits
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from rollbook_client.events import ExchangeStopped
from tests.contract.tasks.playing import SAID, Acting, Agent, Stage, ask_times, played
from tests.support.model_server import ModelServer, Say, Status

# Turn by turn. New input: 10, 5, 5, 5. Sums after each turn: input 10, 15, 20, 25; output 5, 10, 15, 20;
# total 15, 25, 35, 45.
USAGES = [(10, 5), (20, 5), (30, 5), (40, 5), (50, 5)]


def said(prompt: int, completion: int, **details: Any) -> Say:
    """An answer that used so many tokens."""
    return Say("ok", usage={"prompt_tokens": prompt, "completion_tokens": completion, **details})


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("name", "limit", "refused"),
    [
        ("max_turns", 0, 1),
        ("max_turns", 3, 4),
        ("max_input_tokens", 10, 2),
        ("max_input_tokens", 15, 3),
        ("max_input_tokens", 16, 4),
        ("max_input_tokens", 20, 4),
        ("max_output_tokens", 5, 2),
        ("max_output_tokens", 10, 3),
        ("max_output_tokens", 11, 4),
        ("max_total_tokens", 15, 2),
        ("max_total_tokens", 16, 3),
        ("max_total_tokens", 25, 3),
        ("max_total_tokens", 26, 4),
    ],
)
async def test_limit_refuses_exactly_the_turn_after_it_is_reached(
    stage: Stage, name: str, limit: int, refused: int, streamed: bool
) -> None:
    harness = Acting(ask_times(5, streamed=streamed))
    async with ModelServer(*(said(*usage) for usage in USAGES)) as model:
        rollout = stage.rollout(model, harness, limits=RolloutLimits(**{name: limit}))
        trace = await played(rollout)
        assert len(model.received) == refused - 1, "the model saw another number of turns"
    assert trace.num_turns == refused - 1
    assert trace.stop_condition == name
    assert stage.tells(ExchangeStopped) == [ExchangeStopped(attempt=0, condition=name)]
    assert trace.ok
    assert trace.errors == []
    assert trace.is_truncated


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", LIMIT_NAMES)
async def test_program_gets_400_with_the_limits_name_and_so_on_every_further_call(
    stage: Stage, name: str, streamed: bool
) -> None:
    seen = []

    async def play(agent: Agent) -> None:
        for _ in range(4):
            got = await agent.ask(streamed=streamed)
            seen.append((got.status, got.error))

    async with ModelServer(default=said(10, 5)) as model:
        trace = await played(stage.rollout(model, Acting(play), limits=RolloutLimits(**{name: 1})))
        assert len(model.received) == 1
    refusal = (400, f"rollout stopped: {name}")
    assert seen == [(200, None), refusal, refusal, refusal]
    assert trace.stop_condition == name


async def test_turn_that_crosses_a_token_limit_completes(stage: Stage) -> None:
    async with ModelServer(said(10, 5000)) as model:
        trace = await played(stage.rollout(model, Acting(ask_times(2)), limits=RolloutLimits(max_output_tokens=100)))
    assert trace.num_output_tokens == 5000
    assert trace.final_branch is not None
    assert trace.final_branch.messages[-1]["content"] == "ok"


@pytest.mark.parametrize("position", range(4))
async def test_limits_are_looked_at_in_their_order(stage: Stage, position: int) -> None:
    reached = dict.fromkeys(LIMIT_NAMES[position:], 1)
    async with ModelServer(default=said(10, 5)) as model:
        trace = await played(stage.rollout(model, Acting(ask_times(2)), limits=RolloutLimits(**reached)))
    assert trace.stop_condition == LIMIT_NAMES[position]


async def test_limits_come_before_trace_stops(stage: Stage) -> None:
    asked: list[int] = []

    class Stops(Task[TaskData]):
        @stop
        def enough(self, trace: Trace) -> bool:
            asked.append(trace.num_turns)
            return trace.num_turns >= 1

    async with ModelServer(default=said(10, 5)) as model:
        trace = await played(
            stage.rollout(model, Acting(ask_times(2)), task=Stops(), limits=RolloutLimits(max_turns=1))
        )
    assert trace.stop_condition == "max_turns"
    assert asked == [0], "the stop was asked about a turn that a limit had refused"


async def test_calls_without_usage_count_as_turns_and_not_as_tokens(stage: Stage) -> None:
    script = [said(10, 5), Say("ok", usage=None), said(30, 5), said(40, 5)]
    async with ModelServer(*script) as model:
        limits = RolloutLimits(max_total_tokens=35)
        trace = await played(stage.rollout(model, Acting(ask_times(4)), limits=limits))
        assert len(model.received) == 3
    # The call without usage is skipped: what the third read anew is counted against the first.
    assert (trace.num_turns, trace.num_input_tokens, trace.num_output_tokens, trace.num_total_tokens) == (3, 25, 10, 35)


async def test_input_tokens_include_what_was_read_from_a_cache(stage: Stage) -> None:
    async with ModelServer(said(100, 5, prompt_tokens_details={"cached_tokens": 90})) as model:
        limits = RolloutLimits(max_input_tokens=100)
        trace = await played(stage.rollout(model, Acting(ask_times(2)), limits=limits))
        assert len(model.received) == 1
    assert trace.stop_condition == "max_input_tokens"


async def test_branches_are_summed_and_their_shared_beginning_is_counted_once(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()  # 10 in, 5 out
        beginning = list(agent.messages)
        await agent.ask({"role": "user", "content": "left"})  # 5 new in, 5 out
        agent.messages = [*beginning, {"role": "user", "content": "right"}]  # the history is rewritten
        await agent.ask()  # 7 new in, 5 out
        await agent.ask({"role": "user", "content": "more"})

    script = [said(10, 5), said(20, 5), said(22, 5), said(40, 5)]
    async with ModelServer(*script) as model:
        # Input 10 + 5 + 7, output 3 × 5, total 25 (left) + 27 (right).
        limits = RolloutLimits(max_input_tokens=23, max_output_tokens=16, max_total_tokens=52)
        trace = await played(stage.rollout(model, Acting(play), limits=limits))
        assert len(model.received) == 3
    assert trace.stop_condition == "max_total_tokens"
    assert (trace.num_input_tokens, trace.num_output_tokens, trace.num_total_tokens) == (22, 15, 52)
    assert len(trace.branches) == 2


async def test_smaller_prompt_than_the_call_before_takes_nothing_back(stage: Stage) -> None:
    async with ModelServer(said(100, 5), said(3, 5), said(9, 5)) as model:
        trace = await played(stage.rollout(model, Acting(ask_times(3))))
    assert trace.num_input_tokens == 100 + 0 + 1


async def test_calls_that_failed_are_no_turns(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        statuses = [(await agent.ask()).status for _ in range(4)]
        assert statuses == [500, 200, 200, 400]

    async with ModelServer(Status(500), said(10, 5), said(20, 5)) as model:
        trace = await played(stage.rollout(model, Acting(play), limits=RolloutLimits(max_turns=2)))
    assert trace.errors == []
    assert trace.stop_condition == "max_turns"
    assert len(trace.calls) == 3


async def test_calls_side_by_side_do_not_pass_max_turns_together(stage: Stage) -> None:
    released = asyncio.Event()

    async def play(agent: Agent) -> None:
        waiting = [asyncio.ensure_future(agent.call([*SAID, {"role": "user", "content": str(n)}])) for n in range(3)]
        await model.wait_for(2)
        await stage.until_waiting(3)
        released.set()
        assert sorted([(await call).status for call in waiting]) == [200, 200, 400]
        assert len(model.received) == 2

    async with ModelServer(default=Say(gate=released)) as model:
        trace = await played(stage.rollout(model, Acting(play), limits=RolloutLimits(max_turns=2)))
    assert trace.errors == []
    assert trace.num_turns == 2
    assert trace.stop_condition == "max_turns"


async def test_stopped_rollout_is_scored(stage: Stage) -> None:
    class Scored(Task[TaskData]):
        @reward
        def turns(self, trace: Trace) -> float:
            return float(trace.num_turns)

    async with ModelServer(default=said(10, 5)) as model:
        trace = await played(
            stage.rollout(model, Acting(ask_times(3)), task=Scored(), limits=RolloutLimits(max_turns=2))
        )
    assert trace.rewards == {"turns": 2.0}
    assert trace.reward == 2.0
