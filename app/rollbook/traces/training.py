"""Traces as training data: token ids with masks and logprobs, for each branch and for a whole trace."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from rollbook.traces.calls import CallTokens
from rollbook.traces.tokens import common_length
from rollbook.traces.trace import Branch, Trace


class Sequence(msgspec.Struct):
    """Tokens that a model saw and sampled in one go. All lists are of one length.

    `mask` is 1 where a token was sampled by one of `calls`, else 0. `logprobs` are those of the sampled tokens, 0.0
    elsewhere; None where the upstream did not send them for all of the sampled tokens.
    """

    token_ids: list[int]
    mask: list[int]
    logprobs: list[float] | None
    calls: list[int]


class TrainingRow(msgspec.Struct, kw_only=True):
    """One sequence with what a trainer needs to know of its rollout. `sequence` counts those of a branch from 0."""

    rollout_id: str
    branch: int
    sequence: int
    calls: list[int]
    token_ids: list[int]
    mask: list[int]
    logprobs: list[float] | None
    reward: float | None
    ok: bool
    is_truncated: bool


def branch_sequences(trace: Trace, branch: Branch) -> list[Sequence] | None:
    """The sequences of a branch: one as long as each prompt begins with exactly the tokens before it.

    Where one does not (a chat template that drops the reasoning of earlier turns, a text that was tokenised anew),
    a new sequence starts with that call's whole prompt. None where a call of the branch has no ids of its prompt or
    answer; an empty list where the branch has no call.
    """
    return _sequences(trace, branch, masked=frozenset())


def training_rows(trace: Trace) -> list[TrainingRow] | None:
    """The sequences of all branches, each sampled token masked in exactly once.

    A call that an earlier branch has too is context in the later one, and a sequence of context alone is left out.
    None where ids are absent for any answered call: a rollout is complete training data or none.
    """
    rows: list[TrainingRow] = []
    seen: set[int] = set()
    for branch in trace.branches:
        sequences = _sequences(trace, branch, masked=seen)
        if sequences is None:
            return None
        seen.update(call.number for call in branch.calls)
        for position, sequence in enumerate(part for part in sequences if part.calls):
            rows.append(
                TrainingRow(
                    rollout_id=trace.rollout_id,
                    branch=branch.index,
                    sequence=position,
                    calls=sequence.calls,
                    token_ids=sequence.token_ids,
                    mask=sequence.mask,
                    logprobs=sequence.logprobs,
                    reward=trace.reward,
                    ok=trace.ok,
                    is_truncated=trace.is_truncated,
                )
            )
    return rows


def training_lines(trace: Trace) -> bytes | None:
    """`training_rows` as JSON lines."""
    rows = training_rows(trace)
    return None if rows is None else msgspec.json.Encoder().encode_lines(rows)


def _sequences(trace: Trace, branch: Branch, *, masked: Collection[int]) -> list[Sequence] | None:
    """The sequences of a branch, in which the calls of `masked` are context."""
    growing: list[_Growing] = []
    before: int | None = None
    for call in branch.calls:
        tokens = call.tokens
        if tokens is None or tokens.prompt_ids is None or tokens.ids is None:
            return None
        ids = growing[-1].ids if growing else []
        if tokens.base == before:
            shared, rest = tokens.shared, tokens.prompt_ids
        else:
            whole = trace.full_tokens(call.number)
            prompt = whole.prompt_ids if whole is not None and whole.prompt_ids is not None else []
            shared = common_length(prompt, ids)
            rest = prompt[shared:]
        if not growing or shared < len(ids):
            growing.append(_Growing(ids[:shared]))
        growing[-1].add(call.number, rest, tokens, sampled=call.number not in masked)
        before = call.number
    return [part.sequence() for part in growing]


class _Growing:
    """A sequence in the making."""

    def __init__(self, context: list[int]) -> None:
        self.ids = context
        self._mask = [0] * len(context)
        self._logprobs = [0.0] * len(context)
        self._calls: list[int] = []
        self._complete = True

    def add(self, call: int, rest: list[int], tokens: CallTokens, *, sampled: bool) -> None:
        """Append the rest of a prompt and the answer to it."""
        ids = tokens.ids or []
        self.ids += rest
        self.ids += ids
        self._mask += [0] * len(rest) + [int(sampled)] * len(ids)
        self._logprobs += [0.0] * len(rest)
        if not sampled:
            self._logprobs += [0.0] * len(ids)
            return
        self._calls.append(call)
        self._complete = self._complete and tokens.logprobs is not None
        self._logprobs += tokens.logprobs if tokens.logprobs is not None else [0.0] * len(ids)

    def sequence(self) -> Sequence:
        return Sequence(self.ids, self._mask, self._logprobs if self._complete else None, self._calls)
