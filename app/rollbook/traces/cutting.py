"""Traces that are too large to be stored whole: what is left out first, and that it says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from rollbook.traces.graph import Node
from rollbook.traces.trace import Rewrite, Trace

__all__ = ["CUT", "cuts"]

CUT = "rollbook_cut"
"""Where the `info` of a trace that was cut says so, and how."""

_TEXT_CHARS = (10_000, 200)
"""How much of each text is kept, at first and where that is still too much."""


def cuts(trace: Trace, why: str) -> Iterator[Trace]:
    """Ever smaller copies of a trace, each of which says in its `info` what it lacks, and `why`.

    First without token ids and logprobs, then with its long texts shortened, at last without messages and calls.
    """
    trace = replace(trace, calls=[replace(call, tokens=None) for call in trace.calls])
    yield _marked(trace, f"without token ids and logprobs: {why}")
    for chars in _TEXT_CHARS:
        yield _marked(_shortened(trace, chars), f"without token ids and logprobs, texts at {chars} characters: {why}")
    bare = replace(trace, task={}, info={}, nodes=[], calls=[], request_rewrites=[], response_rewrites=[])
    yield _marked(bare, f"without messages, calls and whatever else a task keeps: {why}")


def _marked(trace: Trace, text: str) -> Trace:
    return replace(trace, info={**trace.info, CUT: text})


def _shortened(trace: Trace, chars: int) -> Trace:
    def shorter(value: Any) -> Any:
        if isinstance(value, str):
            return value if len(value) <= chars else f"{value[:chars]} [… {len(value) - chars} characters cut]"
        if isinstance(value, dict):
            return {shorter(key): shorter(item) for key, item in value.items()}
        return [shorter(item) for item in value] if isinstance(value, list) else value

    return replace(
        trace,
        task=shorter(trace.task),
        info=shorter(trace.info),
        nodes=[_node(node, shorter) for node in trace.nodes],
        request_rewrites=[_rewrite(rewrite, shorter) for rewrite in trace.request_rewrites],
        response_rewrites=[_rewrite(rewrite, shorter) for rewrite in trace.response_rewrites],
    )


def _node(node: Node, shorter: Callable[[Any], Any]) -> Node:
    return replace(node, message=shorter(node.message))


def _rewrite(rewrite: Rewrite, shorter: Callable[[Any], Any]) -> Rewrite:
    return replace(rewrite, before=shorter(rewrite.before), after=shorter(rewrite.after))
