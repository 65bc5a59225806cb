"""The message graph: what is shared, what makes a branch, and that no prompt is told otherwise than it was."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.traces import MessageDict, MessageGraph, MessageKeys, Node
from rollbook.traces.matching import plainly_same
from tests.unit.traces.conversations import FEWER, Turn, assistant, played, turns, user

SYSTEM: MessageDict = {"role": "system", "content": "Be short."}


@FEWER
@given(turns())
def test_every_call_reads_back_as_the_prompt_it_was_given_and_the_answer_it_got(made: list[Turn]) -> None:
    trace = played(made)
    assert len(trace.calls) == len(made)
    for turn, call in zip(made, trace.calls, strict=True):
        assert [trace.nodes[node].message for node in trace.graph.path(call.prompt)] == turn.prompt
        if turn.answer is None:
            assert call.node is None
        else:
            assert call.node is not None
            assert trace.nodes[call.node] == Node(call.prompt, turn.answer, sampled=True, call=call.number)


@FEWER
@given(turns())
def test_every_answer_is_on_a_branch_and_every_branch_ends_where_nothing_follows(made: list[Turn]) -> None:
    trace = played(made)
    branches = trace.branches
    assert {node for branch in branches for node in branch.nodes} == set(range(len(trace.nodes)))
    assert {call.number for branch in branches for call in branch.calls} == {
        call.number for call in trace.calls if call.node is not None
    }
    assert len({tuple(branch.nodes) for branch in branches}) == len(branches)
    parents = {node.parent for node in trace.nodes}
    for index, branch in enumerate(branches):
        assert branch.index == index
        assert branch.nodes[-1] not in parents
        assert branch.messages == [trace.nodes[node].message for node in branch.nodes]
        numbers = [call.number for call in branch.calls]
        assert numbers == sorted(set(numbers))


@FEWER
@given(turns())
def test_equal_messages_at_one_place_are_one_node_unless_the_model_wrote_both(made: list[Turn]) -> None:
    trace = played(made)
    keys = MessageKeys()
    unsampled = Counter((node.parent, keys.of(node.message)) for node in trace.nodes if not node.sampled)
    assert max(unsampled.values()) == 1


@FEWER
@given(turns())
def test_graph_over_stored_nodes_goes_on_as_the_first_would(made: list[Turn]) -> None:
    trace = played(made)
    again = MessageGraph(list(trace.nodes))
    assert again.leaves() == trace.graph.leaves()
    for turn in made:
        assert again.known(turn.prompt) == len(turn.prompt)
        assert again.add_prompt(turn.prompt) == trace.graph.add_prompt(turn.prompt)
    assert again.nodes == trace.nodes


def test_history_that_grows_makes_one_branch() -> None:
    graph = MessageGraph()
    prompt = graph.add_prompt([SYSTEM, user("1")])
    answer = graph.add_answer(prompt, assistant("one"), 1)
    further = graph.add_prompt([SYSTEM, user("1"), assistant("one"), user("2")])
    assert further is not None
    assert graph.path(further) == [0, 1, answer, further]
    assert graph.leaves() == [further]
    assert [node.sampled for node in graph.nodes] == [False, False, True, False]


def test_rewritten_history_makes_a_branch_from_where_it_differs() -> None:
    graph = MessageGraph()
    graph.add_answer(graph.add_prompt([SYSTEM, user("1")]), assistant("one"), 1)
    rewritten = graph.add_prompt([SYSTEM, user("summary"), user("2")])
    assert graph.path(rewritten) == [0, 3, 4]
    assert graph.leaves() == [2, 4]


def test_message_that_a_client_puts_into_the_models_mouth_is_not_sampled() -> None:
    graph = MessageGraph()
    node = graph.add_prompt([user("1"), assistant("I was never sampled"), user("2")])
    assert [graph.nodes[place].sampled for place in graph.path(node)] == [False, False, False]


def test_two_samples_of_one_prompt_are_two_answers_even_when_they_are_equal() -> None:
    graph = MessageGraph()
    prompt = graph.add_prompt([user("1")])
    assert graph.add_prompt([user("1")]) == prompt
    first, second = graph.add_answer(prompt, assistant("yes"), 1), graph.add_answer(prompt, assistant("yes"), 2)
    assert graph.leaves() == [first, second]


def test_equal_answers_are_gone_on_from_once_each() -> None:
    graph = MessageGraph()
    prompt = graph.add_prompt([user("1")])
    first, second = graph.add_answer(prompt, assistant("yes"), 1), graph.add_answer(prompt, assistant("yes"), 2)
    one = graph.add_prompt([user("1"), assistant("yes"), user("a")])
    other = graph.add_prompt([user("1"), assistant("yes"), user("b")])
    assert {graph.path(one)[1], graph.path(other)[1]} == {first, second}
    # And a history that grows stays on the way that it was on.
    for node, text in ((one, "a"), (other, "b")):
        longer = graph.add_prompt([user("1"), assistant("yes"), user(text), user("more")])
        assert graph.path(longer)[:-1] == graph.path(node)


def test_empty_prompt_has_no_node_and_its_answer_no_parent() -> None:
    graph = MessageGraph()
    assert graph.add_prompt([]) is None
    assert graph.nodes[graph.add_answer(None, assistant("hello"), 1)].parent is None
    assert graph.path(None) == []
    assert graph.known([]) == 0


def test_known_says_how_much_of_a_prompt_is_not_new_and_adds_nothing() -> None:
    graph = MessageGraph()
    graph.add_answer(graph.add_prompt([SYSTEM, user("1")]), assistant("one"), 1)
    assert graph.known([SYSTEM, user("1"), assistant("one"), user("2")]) == 3
    assert graph.known([user("1")]) == 0
    assert len(graph.nodes) == 3


def test_later_changes_to_a_message_leave_the_graph_alone() -> None:
    graph = MessageGraph()
    message = assistant("", tool_calls=[{"id": "c", "function": {"name": "f", "arguments": "{}"}}])
    graph.add_prompt([message])
    message["tool_calls"][0]["function"]["name"] = "g"
    assert graph.nodes[0].message["tool_calls"][0]["function"]["name"] == "f"


def _calls(arguments: str, **fields: object) -> MessageDict:
    return assistant("", tool_calls=[{"id": "c", **fields, "function": {"name": "f", "arguments": arguments}}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant("a"), assistant("a", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=[])),
        (assistant("a"), assistant("a", reasoning="hm", reasoning_content="hm", name="")),
        (assistant("a"), assistant("a", refusal="no", provider_specific_fields={"x": 1})),
        (_calls("{}"), {**_calls("{}"), "content": None}),
        (_calls("{}"), _calls("")),
        (_calls('{"a": 1, "b": [2]}'), _calls('{"b":[2.0],"a":1}')),
        (_calls('{"a": "\\u00e9"}'), _calls('{"a": "é"}')),
        (_calls("{}", type="function"), _calls("{}", index=0)),
        (user("a"), {"role": "user", "content": [{"type": "text", "text": "a"}]}),
        (
            user("a"),
            {"content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "role": "user"},
        ),
    ],
)
def test_what_clients_do_to_a_message_keeps_it_the_same(one: MessageDict, other: MessageDict) -> None:
    keys = MessageKeys()
    assert keys.of(one) == keys.of(other)
    graph = MessageGraph()
    assert graph.add_prompt([one]) == graph.add_prompt([other])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("a"), assistant("a")),
        (user("a"), user("a ")),
        (user("a"), {**user("a"), "name": "b"}),
        (user("a"), {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        (
            {"role": "tool", "content": "a", "tool_call_id": "1"},
            {"role": "tool", "content": "a", "tool_call_id": "2"},
        ),
        (_calls("{}"), assistant("")),
        (user("a"), {**user("a"), "flag": False}),
        ({**user("a"), "flag": 0}, {**user("a"), "flag": False}),
        (_calls('{"a": 1}'), _calls('{"a": 2}')),
        (_calls('{"a": 1}'), _calls('{"a": true}')),
        (_calls('{"a": 1}'), _calls('{"a": "1"}')),
        (_calls('{"a": [1, 2]}'), _calls('{"a": [2, 1]}')),
        (_calls("no JSON"), _calls('"no JSON"')),
        (_calls('{"a": 1e999}'), _calls('{"a": 1e998}')),
        (_calls("{}", type="function"), _calls("{}", type="custom")),
        (assistant("", function_call={"name": "f", "arguments": "{}"}), assistant("")),
    ],
)
def test_messages_that_say_something_else_are_not_the_same(one: MessageDict, other: MessageDict) -> None:
    keys = MessageKeys()
    assert keys.of(one) != keys.of(other)
    graph = MessageGraph()
    assert graph.add_prompt([one]) != graph.add_prompt([other])


_VALUES: list[Any] = [None, "", "a", False, 0, 1, [], {}, ["a"], [{"id": "c", "function": {"name": "f"}}]]
_messages = st.dictionaries(
    st.sampled_from(["content", "tool_calls", "name", "refusal", "flag"]), st.sampled_from(_VALUES)
)


@given(_messages, _messages)
def test_quick_look_never_takes_two_messages_for_one(one: MessageDict, other: MessageDict) -> None:
    keys = MessageKeys()
    if plainly_same(one, other):
        assert keys.of(one) == keys.of(other)


@given(st.text(st.sampled_from('a\ud800\udfff\x00"\\'), max_size=6))
def test_lone_surrogates_are_compared_like_any_text(text: str) -> None:
    keys = MessageKeys()
    parts = [{"type": "image_url", "image_url": {"url": text}}]
    assert keys.of({"role": "user", "content": parts}) == keys.of({"content": parts, "role": "user"})
    assert keys.of({"role": "user", "content": parts}) != keys.of({"role": "user", "content": [*parts, *parts]})
