"""Conversations as agents have them: histories that grow, are rewritten, cut, started anew, or asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from rollbook.traces import CallError, CallTokens, MessageDict, ModelCall, Trace, Usage

FEWER = settings(max_examples=settings().max_examples // 2)
"""A conversation takes long to make, and many tests make theirs: together they see enough of them."""

MODES = ("extend", "rewrite", "truncate", "fresh", "again")


class Turn(msgspec.Struct, frozen=True):
    """One call as a trace is told of it."""

    prompt: list[MessageDict]
    answer: MessageDict | None
    usage: Usage | None
    tokens: CallTokens | None = None

    @property
    def call(self) -> ModelCall:
        error = None if self.answer is not None else CallError("http", "no", 500)
        return ModelCall(started_at=1, ended_at=2, usage=self.usage, error=error, tokens=self.tokens)


def user(text: str) -> MessageDict:
    return {"role": "user", "content": text}


def assistant(text: str, **fields: Any) -> MessageDict:
    return {"role": "assistant", "content": text, **fields}


def played(turns: Sequence[Turn]) -> Trace:
    """A trace that took these turns."""
    trace = Trace(rollout_id="r-1", harness="chat", task={"id": "t-1"})
    for turn in turns:
        trace.commit_call(turn.call, turn.answer, trace.commit_prompt(turn.prompt))
    return trace


# A few texts only, so that equal messages meet often.
_texts = st.sampled_from("abc")
_users = st.builds(user, _texts)
_answers = st.builds(assistant, _texts)
_usages = st.none() | st.builds(Usage, st.integers(0, 50), st.integers(0, 20))


@st.composite
def turns(draw: st.DrawFn, *, longest: int = 8) -> list[Turn]:
    """Turns of an agent that does to its history whatever agents do; some calls fail, some have no usage."""
    made: list[Turn] = []
    history: list[MessageDict] = []
    for _ in range(draw(st.integers(1, longest))):
        history = draw(_prompts(history, [turn.prompt for turn in made]))
        answer = draw(st.none() | _answers)
        made.append(Turn(history, answer, draw(_usages)))
        if answer is not None:
            history = [*history, answer]
    return made


@st.composite
def _prompts(draw: st.DrawFn, history: list[MessageDict], earlier: list[list[MessageDict]]) -> list[MessageDict]:
    mode = draw(st.sampled_from(MODES))
    added = draw(st.lists(_users, min_size=1, max_size=2))
    if mode == "again" and earlier:
        return draw(st.sampled_from(earlier))
    if mode == "rewrite" and history:
        place = draw(st.integers(0, len(history) - 1))
        return [*history[:place], {**history[place], "content": draw(_texts)}, *history[place + 1 :], *added]
    if mode == "truncate":
        return [*history[: draw(st.integers(0, 1))], *history[draw(st.integers(0, len(history))) :], *added]
    return added if mode == "fresh" else [*history, *added]


@st.composite
def tokenised(draw: st.DrawFn, *, longest: int = 8) -> list[Turn]:
    """The same, all of it with token ids. In some of them an answer reads otherwise as history than it was sampled."""
    rereads = draw(st.booleans())
    sampled: dict[str, list[int]] = {}
    given: list[Turn] = []
    for number, turn in enumerate(draw(turns(longest=longest))):
        prompt = [token for message in turn.prompt for token in tokens_of(message, {} if rereads else sampled)]
        ids = [1000 + number, *draw(st.lists(st.integers(0, 3), max_size=3))]
        if turn.answer is not None:
            sampled[turn.answer["content"]] = ids
        logprobs = draw(st.none() | st.just([-0.5 * place - 1 for place in range(len(ids))]))
        given.append(msgspec.structs.replace(turn, tokens=CallTokens(prompt, ids, logprobs)))
    return given


def tokens_of(message: MessageDict, sampled: dict[str, list[int]]) -> list[int]:
    """Ids of one message in a prompt: of an answer those that were sampled, if they are still known."""
    if message["role"] == "assistant" and message["content"] in sampled:
        return sampled[message["content"]]
    return [ord(message["role"][0]), ord(message["content"]), 10]
