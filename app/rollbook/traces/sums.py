"""How many tokens a rollout used: the sums that its limits are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rollbook.traces.calls import ModelCall
from rollbook.traces.graph import MessageGraph


class TokenSums(msgspec.Struct, frozen=True):
    """Tokens over all branches of a message graph.

    Each call counts once, in the first branch that it is on, and only where its usage is known. `input_tokens` are
    those that came new: what exceeds the total of the call before it on the branch. `output_tokens` is the plain sum.
    `total_tokens` is the total of each branch's last call that counts there.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


def token_sums(graph: MessageGraph, calls: Sequence[ModelCall]) -> TokenSums:
    """The sums over the answered ones of `calls`, which are in the order of their numbers, from 1.

    A call has one predecessor, whatever branch it is seen on, so branches are not walked one by one.
    """
    read = written = total = 0
    for call in calls:
        if call.node is not None and call.usage is not None:
            before = _last_usage(graph, calls, call)
            read += max(0, call.usage.input_tokens - before)
            written += call.usage.output_tokens
    counted: set[int] = set()
    for leaf in graph.leaves():
        ends_with: int | None = None
        for call in _calls_back_from(graph, calls, leaf):
            if call.number in counted:
                break  # and so are all before it: they are on every branch that this call is on
            counted.add(call.number)
            if ends_with is None and call.usage is not None:
                ends_with = call.usage.total_tokens
        total += ends_with or 0
    return TokenSums(read, written, total)


def _last_usage(graph: MessageGraph, calls: Sequence[ModelCall], call: ModelCall) -> int:
    """The total of the last call with usage that `call`'s prompt follows, 0 where there is none."""
    for earlier in _calls_back_from(graph, calls, call.prompt):
        if earlier.usage is not None:
            return earlier.usage.total_tokens
    return 0


def _calls_back_from(graph: MessageGraph, calls: Sequence[ModelCall], node: int | None) -> Iterator[ModelCall]:
    """The answered calls at and before a node, the last one first."""
    number = graph.call_at(node)
    while number is not None:
        call = calls[number - 1]
        yield call
        number = graph.call_at(call.prompt)
