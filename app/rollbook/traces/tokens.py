"""Prompts' token ids without what they share with the call before, and whole again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollbook.traces.calls import CallTokens, ModelCall

_CHUNK = 512


def shortened(tokens: CallTokens, *, base: int | None, calls: Sequence[ModelCall]) -> CallTokens:
    """`tokens` with a prompt that is kept only from where it leaves call `base`'s prompt and answer.

    Unchanged where either has no ids of a prompt or an answer to compare. `calls` are all calls before this one, in
    the order of their numbers, from 1.
    """
    before = tokens_before(base, calls=calls)
    if tokens.prompt_ids is None or before is None:
        return tokens
    shared = common_length(tokens.prompt_ids, before)
    return msgspec.structs.replace(tokens, prompt_ids=tokens.prompt_ids[shared:], base=base, shared=shared)


def tokens_before(number: int | None, *, calls: Sequence[ModelCall]) -> list[int] | None:
    """The ids of a call's whole prompt and its answer; None where one of them is absent."""
    if number is None:
        return None
    tokens = calls[number - 1].tokens
    prompt = prompt_ids(number, calls=calls)
    if prompt is None or tokens is None or tokens.ids is None:
        return None
    return prompt + tokens.ids


def prompt_ids(number: int, *, calls: Sequence[ModelCall]) -> list[int] | None:
    """The ids of a call's whole prompt; None where they are absent."""
    chain: list[CallTokens] = []
    following: int | None = number
    while following is not None:
        tokens = calls[following - 1].tokens
        if tokens is None or tokens.prompt_ids is None:
            return None
        chain.append(tokens)
        following = tokens.base
    ids: list[int] = []
    for tokens in reversed(chain):
        del ids[tokens.shared :]
        ids += tokens.prompt_ids or []
        if tokens is not chain[0]:
            ids += tokens.ids or []
    return ids


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first items two lists have in common."""
    if one[: len(other)] == other:
        return len(other)
    end = min(len(one), len(other))
    start = 0
    # Slices are compared much faster than items, and the lists of a long conversation are long.
    while start < end and one[start : min(start + _CHUNK, end)] == other[start : min(start + _CHUNK, end)]:
        start = min(start + _CHUNK, end)
    while start < end and one[start] == other[start]:
        start += 1
    return start
