"""Traces that are too large: copies that lack ever more, and say so."""

from __future__ import annotations

from typing import Any

from rollbook.traces.cutting import CUT, cuts
from rollbook.traces.storage import dumps, loads
from rollbook.traces.trace import Rewrite, Trace
from tests.unit.traces.conversations import Turn, assistant, played, user

LONG = "x" * 50_000


def large() -> Trace:
    """One turn with long texts everywhere."""
    trace = played([Turn([user(LONG)], assistant("hi"), None)])
    trace.task = {"id": "t", "hint": LONG}
    trace.info = {"notes": [LONG, 1], "short": "kept"}
    messages: list[dict[str, Any]] = [user(LONG)]
    trace.request_rewrites = [Rewrite("hook", "request", 1, messages, messages)]
    trace.rewards = {"one": 1.0}
    return trace


def test_each_copy_is_smaller_can_be_read_and_says_what_it_lacks() -> None:
    trace = large()
    written = [dumps(trace), *(dumps(cut) for cut in cuts(trace, "it is too large"))]
    assert all(later < earlier for earlier, later in zip(map(len, written[1:]), map(len, written[2:]), strict=False))
    for data in written[1:]:
        read = loads(data)
        assert read.info[CUT].startswith("without ")
        assert read.info[CUT].endswith(": it is too large")
        assert read.rewards == {"one": 1.0}
    assert CUT not in trace.info


def test_texts_are_shortened_wherever_they_are() -> None:
    _tokens, first, second, _bare = cuts(large(), "why")
    for cut, chars in ((first, 10_000), (second, 200)):
        shortened = "x" * chars + f" [… {50_000 - chars} characters cut]"
        assert cut.nodes[0].message == user(shortened)
        assert cut.task == {"id": "t", "hint": shortened}
        assert cut.info["notes"] == [shortened, 1]
        assert cut.info["short"] == "kept"
        assert cut.request_rewrites[0].before == [user(shortened)]


def test_token_ids_go_first_and_messages_stay() -> None:
    trace = large()
    first = next(cuts(trace, "why"))
    assert [call.tokens for call in first.calls] == [None]
    assert first.nodes == trace.nodes
