"""Training data: sequences hold what the model saw, masks cover what it sampled, nothing is trained on twice."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given

from rollbook.traces import (
    CallTokens,
    Sequence,
    Trace,
    branch_sequences,
    dumps,
    loads,
    training_lines,
    training_rows,
)
from tests.unit.traces.conversations import FEWER, Turn, assistant, played, tokenised, turns, user


def by_whole_prompts(trace: Trace, made: list[Turn], numbers: list[int]) -> list[Sequence]:
    """The sequences of some calls that follow each other, from the tokens as they were given."""
    sequences: list[Sequence] = []
    for number in numbers:
        tokens = made[number - 1].tokens
        assert tokens is not None
        assert tokens.prompt_ids is not None
        assert tokens.ids is not None
        before = sequences[-1].token_ids if sequences else None
        if before is not None and tokens.prompt_ids[: len(before)] == before:
            last = sequences[-1]
        else:
            last = Sequence([], [], [], [])
            sequences.append(last)
        rest = tokens.prompt_ids[len(last.token_ids) :]
        last.token_ids += rest + tokens.ids
        last.mask += [0] * len(rest) + [1] * len(tokens.ids)
        last.calls.append(number)
        if last.logprobs is not None:
            last.logprobs = None if tokens.logprobs is None else [*last.logprobs, *[0.0] * len(rest), *tokens.logprobs]
    return sequences


@FEWER
@given(tokenised())
def test_tokens_of_a_call_come_back_whole(made: list[Turn]) -> None:
    trace = played(made)
    for number, turn in enumerate(made, 1):
        assert trace.full_tokens(number) == turn.tokens


@FEWER
@given(tokenised())
def test_sequences_of_a_branch_are_those_of_its_whole_prompts(made: list[Turn]) -> None:
    trace = played(made)
    for branch in trace.branches:
        expected = by_whole_prompts(trace, made, [call.number for call in branch.calls])
        assert branch_sequences(trace, branch) == expected
        assert branch_sequences(loads(dumps(trace)), branch) == expected


@FEWER
@given(tokenised())
def test_masks_cover_sampled_tokens_only_and_each_of_them_once(made: list[Turn]) -> None:
    trace = played(made)
    rows = training_rows(trace)
    assert rows is not None
    for row in rows:
        assert len(row.token_ids) == len(row.mask)
        assert set(row.mask) <= {0, 1}
        masked = [token for token, mask in zip(row.token_ids, row.mask, strict=True) if mask]
        sampled = [token for number in row.calls for token in _ids(made, number)]
        assert masked == sampled
        if row.logprobs is not None:
            assert len(row.logprobs) == len(row.token_ids)
            assert [value for value, mask in zip(row.logprobs, row.mask, strict=True) if not mask] == [0.0] * (
                len(row.mask) - sum(row.mask)
            )
    trained = Counter(number for row in rows for number in row.calls)
    assert trained == Counter(call.number for call in trace.calls if call.node is not None)


def _ids(made: list[Turn], number: int) -> list[int]:
    tokens = made[number - 1].tokens
    assert tokens is not None
    assert tokens.ids is not None
    return tokens.ids


@FEWER
@given(tokenised())
def test_each_sampled_token_follows_exactly_the_prompt_it_was_sampled_from(made: list[Turn]) -> None:
    rows = training_rows(played(made))
    assert rows is not None
    for row in rows:
        start = 0
        for number in row.calls:
            tokens = made[number - 1].tokens
            assert tokens is not None
            assert tokens.prompt_ids is not None
            ids = _ids(made, number)
            start = len(tokens.prompt_ids)
            assert row.token_ids[:start] == tokens.prompt_ids
            assert row.token_ids[start : start + len(ids)] == ids


A, X, Y, Z = [user("a")], assistant("x"), assistant("y"), assistant("z")
AXB = [*A, X, user("b")]


FIRST = CallTokens([1, 2], [3, 4], [-0.1, -0.2])


def first(tokens: CallTokens | None = FIRST) -> Turn:
    return Turn(A, X, None, tokens)


def second(prompt: list[int]) -> Turn:
    return Turn(AXB, Y, None, CallTokens(prompt, [6], [-0.3]))


def test_prompt_that_begins_with_what_was_sampled_goes_on_in_one_sequence() -> None:
    trace = played([first(), second([1, 2, 3, 4, 5])])
    (branch,) = trace.branches
    assert branch_sequences(trace, branch) == [
        Sequence([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1], [0.0, 0.0, -0.1, -0.2, 0.0, -0.3], [1, 2])
    ]


def test_prompt_may_be_stored_beside_any_earlier_call() -> None:
    trace = played([Turn([user("z")], Z, None, CallTokens([1, 2, 3, 4, 7], [8])), first(), second([1, 2, 3, 4, 5])])
    branch = trace.branches[1]
    sequences = branch_sequences(trace, branch)
    tokens = trace.calls[2].tokens
    assert tokens == CallTokens([5], [6], [-0.3], base=2, shared=4)
    moved = msgspec.structs.replace(tokens, base=1, shared=4)
    trace.calls[2] = msgspec.structs.replace(trace.calls[2], tokens=moved)
    assert trace.full_tokens(3) == CallTokens([1, 2, 3, 4, 5], [6], [-0.3])
    assert branch_sequences(trace, trace.branches[1]) == sequences


@pytest.mark.parametrize("prompt", [[1, 2, 3, 5], [1, 2, 3], [9, 2, 3, 4, 5], [1, 2, 34, 5], []])
def test_prompt_that_does_not_starts_a_sequence_of_its_own(prompt: list[int]) -> None:
    trace = played([first(), second(prompt)])
    (branch,) = trace.branches
    assert branch_sequences(trace, branch) == [
        Sequence([1, 2, 3, 4], [0, 0, 1, 1], [0.0, 0.0, -0.1, -0.2], [1]),
        Sequence([*prompt, 6], [0] * len(prompt) + [1], [0.0] * len(prompt) + [-0.3], [2]),
    ]


def test_call_of_two_branches_is_trained_on_in_the_first_and_context_in_the_second() -> None:
    other = Turn([*A, X, user("c")], Z, None, CallTokens([1, 2, 3, 4, 7], [8], [-0.4]))
    trace = played([first(), second([1, 2, 3, 4, 5]), other])
    rows = training_rows(trace)
    assert rows is not None
    assert [(row.branch, row.sequence, row.calls, row.mask) for row in rows] == [
        (0, 0, [1, 2], [0, 0, 1, 1, 0, 1]),
        (1, 0, [3], [0, 0, 0, 0, 0, 1]),
    ]
    assert rows[1].logprobs == [0.0, 0.0, 0.0, 0.0, 0.0, -0.4]


def test_sequence_of_context_alone_is_left_out() -> None:
    broken = Turn([*A, X, user("c")], Z, None, CallTokens([1, 2, 9], [8], [-0.4]))
    rows = training_rows(played([first(), second([1, 2, 3, 4, 5]), broken]))
    assert rows is not None
    assert [(row.branch, row.sequence, row.calls, row.token_ids) for row in rows] == [
        (0, 0, [1, 2], [1, 2, 3, 4, 5, 6]),
        (1, 0, [3], [1, 2, 9, 8]),
    ]


@pytest.mark.parametrize(
    "tokens", [None, CallTokens(ids=[3]), CallTokens(prompt_ids=[1, 2]), CallTokens(logprobs=[-0.1])]
)
def test_branch_with_absent_ids_has_no_sequences(tokens: CallTokens | None) -> None:
    trace = played([first(tokens), second([1, 2, 3, 4, 5])])
    (branch,) = trace.branches
    assert branch_sequences(trace, branch) is None
    assert training_rows(trace) is None
    assert training_lines(trace) is None


def test_logprobs_that_one_call_lacks_are_absent_in_its_sequence_alone() -> None:
    trace = played([first(CallTokens([1, 2], [3, 4])), second([9])])
    (branch,) = trace.branches
    sequences = branch_sequences(trace, branch)
    assert sequences is not None
    assert [sequence.logprobs for sequence in sequences] == [None, [0.0, -0.3]]


def test_failed_call_is_in_no_sequence() -> None:
    trace = played([Turn(A, None, None), first()])
    rows = training_rows(trace)
    assert rows is not None
    assert [row.calls for row in rows] == [[2]]


def test_rollout_without_calls_has_no_rows() -> None:
    trace = Trace(rollout_id="r")
    trace.commit_prompt(A)
    assert training_rows(trace) == []
    assert training_lines(trace) == b""


@FEWER
@given(turns())
def test_without_token_ids_there_is_no_training_data(made: list[Turn]) -> None:
    trace = played(made)
    assert training_rows(trace) == ([] if trace.num_turns == 0 else None)


def test_lines_tell_a_trainer_whose_tokens_they_are_and_what_they_earned() -> None:
    trace = played([first(), second([9])])
    trace.rewards = {"solved": None}
    trace.stop_condition = "max_turns"
    lines = training_lines(trace)
    assert lines is not None
    one, other = (msgspec.json.decode(line) for line in lines.splitlines())
    assert one == {
        "rollout_id": "r-1",
        "branch": 0,
        "sequence": 0,
        "calls": [1],
        "token_ids": [1, 2, 3, 4],
        "mask": [0, 0, 1, 1],
        "logprobs": [0.0, 0.0, -0.1, -0.2],
        "reward": None,
        "ok": False,
        "is_truncated": True,
    }
    assert (other["sequence"], other["calls"]) == (1, [2])
