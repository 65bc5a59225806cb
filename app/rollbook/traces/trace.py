"""What is known of one rollout: its messages, calls, scores, times and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from rollbook.traces.calls import CallTokens, ModelCall, Usage
from rollbook.traces.graph import MessageGraph, Node
from rollbook.traces.matching import MessageDict
from rollbook.traces.sums import TokenSums, token_sums
from rollbook.traces.tokens import prompt_ids, shortened

VERSION = 1
"""Of the JSON form. `docs/traces.md` describes it."""

LIMITS = frozenset({"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens"})
"""The stop conditions that cut a rollout short."""

Stage = Literal["boot", "setup", "agent", "finalize", "scoring"]


class Rewrite(msgspec.Struct, frozen=True):
    """What a hook changed in a request or a response: the messages before and after, those that changed only.

    `call` is the number of the call whose response it is; None for a request's: calls are numbered as they end.
    """

    hook: str
    side: Literal["request", "response"]
    call: int | None
    before: list[MessageDict]
    after: list[MessageDict]


class Span(msgspec.Struct, frozen=True):
    """Wall-clock start and end of a stage, microseconds since the epoch, UTC; no end while it runs."""

    stage: Stage
    started_at: int
    ended_at: int | None = None


class TraceError(msgspec.Struct, frozen=True):
    """One thing that went wrong. `category` is a value of `RolloutErrorCategory`."""

    stage: str
    type: str
    message: str
    category: str


class Branch(msgspec.Struct, frozen=True):
    """One way through the message graph, from a first message to a node that nothing follows."""

    index: int
    nodes: list[int]
    messages: list[MessageDict]
    calls: list[ModelCall]
    """The calls whose answers are on it, in their order; earlier branches may have some of them too."""


class Trace(msgspec.Struct, kw_only=True, dict=True):
    """One rollout as it happened. It grows by `commit_prompt` and `commit_call`; its other fields are assigned.

    `task` is the task's data as JSON. `rewards` and `metrics` hold None for a score that never came. `ok` says that
    nothing failed and is set when the rollout is closed; a stop is no failure. `extra_usage` are calls that are not
    the policy's, such as those of judges.
    """

    version: int = VERSION
    rollout_id: str
    task: dict[str, Any] = {}
    harness: str = ""
    ok: bool = False
    stop_condition: str | None = None
    nodes: list[Node] = []
    calls: list[ModelCall] = []
    request_rewrites: list[Rewrite] = []
    response_rewrites: list[Rewrite] = []
    rewards: dict[str, float | None] = {}
    metrics: dict[str, float | None] = {}
    weights: dict[str, float] = {}
    errors: list[TraceError] = []
    spans: list[Span] = []
    extra_usage: list[ModelCall] = []
    info: dict[str, Any] = {}

    @property
    def graph(self) -> MessageGraph:
        """The graph over `nodes`, which belong to it: they are not to be changed but through it."""
        graph: MessageGraph | None = self.__dict__.get("_graph")
        if graph is None or graph.nodes is not self.nodes:
            graph = self.__dict__["_graph"] = MessageGraph(self.nodes)
        return graph

    def commit_prompt(self, messages: Sequence[MessageDict], /) -> int | None:
        """Take the messages of a prompt; the node of the last one, None for an empty prompt."""
        return self.graph.add_prompt(messages)

    def commit_call(self, call: ModelCall, message: MessageDict | None, prompt: int | None) -> ModelCall:
        """Take a call that has ended, with the message that it answered, None where it failed.

        Returns the call as the trace keeps it: numbered, at its nodes, and with its prompt's token ids shortened as
        `CallTokens` says. Logprobs that do not fit the ids are left out.
        """
        number = len(self.calls) + 1
        tokens = call.tokens.usable() if call.tokens is not None else None
        if tokens is not None:
            tokens = shortened(tokens, base=self.graph.call_at(prompt), calls=self.calls)
        node = None if message is None else self.graph.add_answer(prompt, message, number)
        kept = msgspec.structs.replace(call, number=number, prompt=prompt, node=node, tokens=tokens)
        self.calls.append(kept)
        return kept

    def full_tokens(self, number: int, /) -> CallTokens | None:
        """The tokens of call `number` with the ids of the whole prompt."""
        tokens = self.calls[number - 1].tokens
        if tokens is None:
            return None
        return CallTokens(prompt_ids(number, calls=self.calls), tokens.ids, tokens.logprobs)

    @property
    def branches(self) -> list[Branch]:
        """All ways through the graph, in the order in which their last messages came."""
        return [self._branch(index, leaf) for index, leaf in enumerate(self.graph.leaves())]

    @property
    def final_branch(self) -> Branch | None:
        """The branch that the last call is on, None without any message.

        A call that failed is where its prompt ends, and one whose prompt was not committed does not count. Where
        several branches go on from the last call, and where there is no call at all, it is the one whose last message
        is the youngest.
        """
        places = (call.prompt if call.node is None else call.node for call in reversed(self.calls))
        place = next((place for place in places if place is not None), None)
        for index, leaf in reversed(list(enumerate(self.graph.leaves()))):
            if place is None or place in self.graph.path(leaf):
                return self._branch(index, leaf)
        return None

    def _branch(self, index: int, leaf: int) -> Branch:
        nodes = self.graph.path(leaf)
        return Branch(
            index=index,
            nodes=nodes,
            messages=[self.nodes[number].message for number in nodes],
            calls=[self.calls[call - 1] for number in nodes if (call := self.nodes[number].call) is not None],
        )

    @property
    def token_sums(self) -> TokenSums:
        # Limits ask several times a turn, and what has been committed stays as it is.
        size = len(self.nodes), len(self.calls)
        known: tuple[tuple[int, int], MessageGraph, TokenSums] | None = self.__dict__.get("_sums")
        if known is None or known[0] != size or known[1] is not self.graph:
            known = self.__dict__["_sums"] = (size, self.graph, token_sums(self.graph, self.calls))
        return known[2]

    @property
    def num_turns(self) -> int:
        """How many calls were answered."""
        return sum(call.node is not None for call in self.calls)

    @property
    def num_input_tokens(self) -> int:
        return self.token_sums.input_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.token_sums.output_tokens

    @property
    def num_total_tokens(self) -> int:
        return self.token_sums.total_tokens

    @property
    def usage(self) -> Usage | None:
        """What the policy's calls used, as a bill would count: every prompt whole. None where no usage is known.

        A detail is the sum of what is known of it, None where nothing is.
        """
        known = [call.usage for call in self.calls if call.usage is not None]
        if not known:
            return None
        cached = [usage.cached_input_tokens for usage in known if usage.cached_input_tokens is not None]
        reasoning = [usage.reasoning_tokens for usage in known if usage.reasoning_tokens is not None]
        return Usage(
            input_tokens=sum(usage.input_tokens for usage in known),
            output_tokens=sum(usage.output_tokens for usage in known),
            cached_input_tokens=sum(cached) if cached else None,
            reasoning_tokens=sum(reasoning) if reasoning else None,
        )

    @property
    def reward(self) -> float | None:
        """The weighted sum of the rewards that are not null; None where there is none. A missing weight is 1."""
        given = [(name, value) for name, value in self.rewards.items() if value is not None]
        return sum(self.weights.get(name, 1.0) * value for name, value in given) if given else None

    @property
    def is_truncated(self) -> bool:
        """Whether a limit stopped the rollout, or the last answer was cut off for its length."""
        answered = [call for call in self.calls if call.node is not None]
        return self.stop_condition in LIMITS or (bool(answered) and answered[-1].finish_reason == "length")
