"""What a trace says of a rollout: turns, usage, reward, truncation, the final branch."""

from typing import Any

import msgspec
import pytest
from hypothesis import given

from rollbook.traces import CallTokens, ModelCall, Trace, Usage, sample_messages
from tests.unit.traces.conversations import FEWER, Turn, assistant, played, turns, user

CALL = ModelCall(started_at=1, ended_at=2)
A = [user("a")]
X, Y = assistant("x"), assistant("y")


def trace(**fields: Any) -> Trace:
    return Trace(rollout_id="r-1", **fields)


def test_calls_are_numbered_as_they_end_and_tied_to_their_messages() -> None:
    made = trace()
    prompt = made.commit_prompt(A)
    failed = made.commit_call(CALL, None, prompt)
    answered = made.commit_call(CALL, X, prompt)
    assert (failed.number, failed.prompt, failed.node) == (1, 0, None)
    assert (answered.number, answered.prompt, answered.node) == (2, 0, 1)
    assert made.calls == [failed, answered]


def test_turns_are_the_answered_calls() -> None:
    assert played([Turn(A, X, None), Turn(A, None, None), Turn(A, Y, None)]).num_turns == 2


def test_usage_is_what_a_bill_would_count() -> None:
    made = played([Turn(A, X, Usage(10, 5, 8)), Turn([*A, X, *A], None, Usage(20, 1)), Turn(A, X, None)])
    assert made.usage == Usage(30, 6, cached_input_tokens=8, reasoning_tokens=None)
    assert played([Turn(A, X, None)]).usage is None


@pytest.mark.parametrize(
    ("rewards", "weights", "reward"),
    [
        ({}, {}, None),
        ({"a": None}, {"a": 1.0}, None),
        ({"a": 0.0}, {"a": 1.0}, 0.0),
        ({"a": 1.0, "b": 0.5, "c": None}, {"a": 2.0, "b": -1.0, "c": 9.0}, 1.5),
        ({"a": 0.25}, {}, 0.25),
    ],
)
def test_reward_is_the_weighted_sum_of_what_is_there(
    rewards: dict[str, float | None], weights: dict[str, float], reward: float | None
) -> None:
    assert trace(rewards=rewards, weights=weights).reward == reward


@pytest.mark.parametrize("limit", ["max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens"])
def test_rollout_that_a_limit_stopped_is_truncated(limit: str) -> None:
    assert trace(stop_condition=limit).is_truncated


def test_rollout_that_a_hook_stopped_is_not_truncated() -> None:
    assert not trace(stop_condition="solved").is_truncated


@pytest.mark.parametrize(("reasons", "truncated"), [(["length"], True), (["length", "stop"], False), ([], False)])
def test_only_the_last_answer_tells_of_truncation(reasons: list[str], truncated: bool) -> None:
    made = trace()
    for reason in reasons:
        made.commit_call(msgspec.structs.replace(CALL, finish_reason=reason), X, made.commit_prompt(A))
    made.commit_call(CALL, None, made.commit_prompt(A))
    assert made.is_truncated is truncated


def test_sample_is_the_conversation_of_the_last_call() -> None:
    made = played([Turn(A, X, None), Turn([user("z")], Y, None)])
    assert sample_messages(made) == [user("z"), Y]


def test_last_call_may_be_on_an_older_branch() -> None:
    made = played([Turn(A, X, None), Turn([user("z")], Y, None), Turn([*A, X, user("b")], Y, None)])
    assert sample_messages(made) == [*A, X, user("b"), Y]


def test_prompt_that_was_committed_after_the_last_answer_belongs_to_the_sample() -> None:
    made = played([Turn(A, X, None)])
    made.commit_prompt([*A, X, user("b")])
    assert sample_messages(made) == [*A, X, user("b")]


def test_rewritten_history_that_no_call_followed_does_not_replace_the_sample() -> None:
    made = played([Turn(A, X, None)])
    made.commit_prompt([user("summary")])
    assert sample_messages(made) == [*A, X]


def test_call_that_failed_ends_the_sample_with_its_prompt() -> None:
    made = played([Turn(A, X, None), Turn([*A, X, user("b")], None, None)])
    assert sample_messages(made) == [*A, X, user("b")]


def test_failed_call_whose_prompt_was_not_committed_leaves_the_sample_as_it_was() -> None:
    made = played([Turn(A, X, None), Turn([user("z")], Y, None), Turn([*A, Y], X, None), Turn(A, Y, None)])
    made.commit_prompt([user("z"), Y, user("later")])
    made.commit_call(CALL, None, None)
    assert sample_messages(made) == [*A, Y]


def test_rollout_without_calls_has_its_prompt_and_without_messages_nothing() -> None:
    made = trace()
    assert sample_messages(made) == []
    assert made.final_branch is None
    assert made.branches == []
    made.commit_prompt(A)
    assert sample_messages(made) == A


def test_sample_is_the_callers_to_change() -> None:
    made = played([Turn(A, assistant("", tool_calls=[{"id": "1"}]), None)])
    sample_messages(made)[1]["tool_calls"].clear()
    assert made.nodes[1].message["tool_calls"] == [{"id": "1"}]


@FEWER
@given(turns())
def test_final_branch_is_one_of_the_branches_and_has_the_last_call(made: list[Turn]) -> None:
    one = played(made)
    last = one.calls[-1]
    assert one.final_branch in one.branches
    assert (last.prompt if last.node is None else last.node) in one.final_branch.nodes


def test_trace_takes_no_logprobs_that_do_not_fit() -> None:
    made = trace()
    call = msgspec.structs.replace(CALL, tokens=CallTokens([1], [2, 3], [-1.0]))
    assert made.commit_call(call, X, made.commit_prompt(A)).tokens == CallTokens([1], [2, 3])


def test_prompt_is_shortened_by_the_call_before_it_on_its_branch() -> None:
    # Two conversations take turns.
    made = played(
        [
            Turn(A, X, None, CallTokens([1, 2], [3])),
            Turn([user("z")], Y, None, CallTokens([7], [8])),
            Turn([*A, X, user("b")], X, None, CallTokens([1, 2, 3, 4], [5])),
            Turn([user("z"), Y, user("b")], X, None, CallTokens([7, 9], [5])),
        ]
    )
    assert [call.tokens for call in made.calls] == [
        CallTokens([1, 2], [3]),
        CallTokens([7], [8]),
        CallTokens([4], [5], base=1, shared=3),
        CallTokens([9], [5], base=2, shared=1),
    ]
    assert made.full_tokens(3) == CallTokens([1, 2, 3, 4], [5])


def test_prompt_after_a_call_without_ids_is_kept_whole() -> None:
    made = played([Turn(A, X, None, CallTokens([1, 2])), Turn([*A, X, *A], Y, None, CallTokens([1, 2, 3], [4]))])
    assert made.calls[1].tokens == CallTokens([1, 2, 3], [4])


def test_graph_is_that_of_the_nodes_which_the_trace_has_now() -> None:
    made = played([Turn(A, X, None)])
    assert made.graph.leaves() == [1]
    made.nodes, made.calls = [], []
    assert made.commit_prompt([user("b")]) == 0
    assert made.graph.leaves() == [0]


def test_traces_do_not_share_what_they_hold() -> None:
    one, other = trace(), trace()
    one.commit_prompt(A)
    one.info["a"] = 1
    assert (other.nodes, other.info) == ([], {})
