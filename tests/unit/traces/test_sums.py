"""Token sums: over branches, each call once, calls without usage skipped."""

import pytest
from hypothesis import given

from rollbook.traces import TokenSums, Trace, Usage
from tests.unit.traces.conversations import FEWER, Turn, assistant, played, turns, user


def by_branches(trace: Trace) -> TokenSums:
    """The sums as they are defined, walking all branches."""
    read = written = total = 0
    counted: set[int] = set()
    for branch in trace.branches:
        before = last = 0
        for call in branch.calls:
            if call.usage is not None:
                if call.number not in counted:
                    read += max(0, call.usage.input_tokens - before)
                    written += call.usage.output_tokens
                    last = call.usage.total_tokens
                before = call.usage.total_tokens
            counted.add(call.number)
        total += last
    return TokenSums(read, written, total)


@FEWER
@given(turns(longest=12))
def test_sums_are_those_of_walking_all_branches(made: list[Turn]) -> None:
    trace = played(made)
    sums = by_branches(trace)
    assert trace.token_sums == sums
    assert (trace.num_input_tokens, trace.num_output_tokens, trace.num_total_tokens) == (
        sums.input_tokens,
        sums.output_tokens,
        sums.total_tokens,
    )


@FEWER
@given(turns(longest=12))
def test_output_tokens_count_every_answer_exactly_once(made: list[Turn]) -> None:
    known = [turn.usage for turn in made if turn.answer is not None and turn.usage is not None]
    assert played(made).num_output_tokens == sum(usage.output_tokens for usage in known)


A, B, C = ([user("a")], [user("a"), assistant("x"), user("b")], [user("a"), assistant("x"), user("c")])
X = assistant("x")


def sums(*made: Turn) -> tuple[int, int, int]:
    found = played(made).token_sums
    return found.input_tokens, found.output_tokens, found.total_tokens


def test_nothing_adds_up_to_nothing() -> None:
    assert sums() == (0, 0, 0)


def test_conversation_counts_only_what_came_new() -> None:
    assert sums(Turn(A, X, Usage(10, 5)), Turn(B, X, Usage(22, 4))) == (10 + (22 - 15), 9, 26)


def test_prompt_that_got_shorter_counts_no_input() -> None:
    # A chat template dropped the reasoning of the first answer.
    assert sums(Turn(A, X, Usage(10, 50)), Turn(B, X, Usage(22, 4))) == (10, 54, 26)


def test_prefix_of_two_branches_counts_once() -> None:
    made = (Turn(A, X, Usage(10, 5)), Turn(B, X, Usage(22, 4)), Turn(C, X, Usage(30, 3)))
    assert sums(*made) == (10 + 7 + 15, 12, 26 + 33)


def test_history_started_anew_counts_from_its_beginning() -> None:
    assert sums(Turn(A, X, Usage(10, 5)), Turn([user("z")], X, Usage(12, 1))) == (22, 6, 15 + 13)


@pytest.mark.parametrize("missing", [0, 1])
def test_call_without_usage_is_skipped(missing: int) -> None:
    made = [Turn(A, X, Usage(10, 5)), Turn(B, X, Usage(22, 4))]
    made[missing] = Turn(made[missing].prompt, X, None)
    (left,) = (turn.usage for turn in made if turn.usage is not None)
    assert sums(*made) == (left.input_tokens, left.output_tokens, left.total_tokens)


def test_failed_call_counts_nothing() -> None:
    assert sums(Turn(A, None, Usage(10, 5)), Turn(A, X, Usage(10, 5))) == (10, 5, 15)


def test_cache_reads_are_input() -> None:
    assert sums(Turn(A, X, Usage(10, 5, cached_input_tokens=9))) == (10, 5, 15)
