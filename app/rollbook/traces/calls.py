"""One call of a model: its times, usage, tokens, and the error where there was one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

_LARGEST = 2**63 - 1
"""Counts end up in columns of 64 bits."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call as the upstream counted them.

    `input_tokens` includes the tokens read from a cache, `output_tokens` those of the reasoning.
    """

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @classmethod
    def parse(cls, value: Any) -> Usage | None:
        """Read the `usage` object of an OpenAI-compatible answer; None where it is absent or unusable.

        A count that is missing, negative or no integer makes the whole object unusable: half a sum misleads.
        Unusable details are left out.
        """
        if not isinstance(value, Mapping):
            return None
        read, written = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
        if read is None or written is None:
            return None
        return cls(
            input_tokens=read,
            output_tokens=written,
            cached_input_tokens=_detail(value.get("prompt_tokens_details"), "cached_tokens"),
            reasoning_tokens=_detail(value.get("completion_tokens_details"), "reasoning_tokens"),
        )


class CallTokens(msgspec.Struct, frozen=True):
    """Token ids and logprobs of one call; None stands for what the upstream did not send.

    `prompt_ids` are the tokens of the prompt, `ids` the sampled ones, `logprobs` one number for each sampled token.

    In a trace a prompt is kept without what it shares with the call before it, or a conversation would be stored
    once for each of its turns: the first `shared` tokens are those that call `base`'s prompt and answer begin with,
    and `prompt_ids` are the rest. `Trace.full_tokens` puts them together.
    """

    prompt_ids: list[int] | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    base: int | None = None
    shared: int = 0

    def usable(self) -> CallTokens | None:
        """The same without logprobs that are not finite or not one for each id; None where nothing is left."""
        logprobs = self.logprobs
        if logprobs is not None and not (
            (self.ids is None or len(self.ids) == len(logprobs)) and all(map(math.isfinite, logprobs))
        ):
            logprobs = None
        if self.prompt_ids is None and self.ids is None and logprobs is None:
            return None
        return self if logprobs is self.logprobs else msgspec.structs.replace(self, logprobs=logprobs)


class CallError(msgspec.Struct, frozen=True):
    """Why a call brought no whole answer.

    `kind` is `http` (the upstream answered with an error, `status` says which), `connect`, `broken_stream`,
    `garbage` (of a judge's answer also one without a score), `timeout`, `aborted` (ended by us) or `internal` (a fault
    of the endpoint's own).
    """

    kind: str
    message: str
    status: int | None = None


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model.

    `number` counts the calls of a trace from 1; 0 is a call that no trace has taken yet. Times are microseconds
    since the epoch, UTC. `prompt` is the node of the prompt's last message, `node` the answer's; a call that failed
    has no `node`. `purpose` is `policy`, or `judge:NAME` for what a judge asked.
    """

    number: int = 0
    model: str | None = None
    started_at: int
    ended_at: int
    first_chunk_at: int | None = None
    streamed: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    error: CallError | None = None
    prompt: int | None = None
    node: int | None = None
    tokens: CallTokens | None = None
    purpose: str = "policy"


def _count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():  # some upstreams count in floats
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        return None
    return value


def _detail(details: Any, name: str) -> int | None:
    return _count(details.get(name)) if isinstance(details, Mapping) else None
