"""One call of a model as a trace keeps it: when, what it used, how it ended, which tokens it was made of."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Usage(Struct, frozen=True):
    """Tokens that the upstream says a call took; `input_tokens` includes what it read from its cache."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def parse(cls, value: Any) -> Usage | None:
        """Read OpenAI's usage object; None where it is absent or unusable."""
        if not isinstance(value, dict):
            return None
        input_tokens, output_tokens = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
        if input_tokens is None or output_tokens is None:
            return None
        return cls(
            input_tokens,
            output_tokens,
            cached_input_tokens=_detail(value, "prompt_tokens_details", key="cached_tokens"),
            reasoning_tokens=_detail(value, "completion_tokens_details", key="reasoning_tokens"),
        )


class CallTokens(Struct, frozen=True):
    """Token ids and log probabilities of a call; None where the upstream did not send them."""

    prompt_ids: list[int] | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None


class CallError(Struct, frozen=True):
    """Why a call brought no answer.

    `kind` is one of ``http`` (the upstream answered with an error status), ``connect``, ``broken_stream``,
    ``garbage``, ``timeout`` and ``aborted`` (ended by us).
    """

    kind: str
    message: str
    status: int | None = None


class ModelCall(Struct, frozen=True):
    """One call, numbered from 1 in its trace; times in microseconds since 1970."""

    number: int
    model: str | None
    started_at: int
    ended_at: int
    first_chunk_at: int | None = None
    streamed: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    error: CallError | None = None
    prompt: int | None = None
    """The node of the prompt's last message."""
    node: int | None = None
    """The node of the answer."""
    tokens: CallTokens | None = None
    purpose: str = "policy"


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _detail(usage: dict[str, Any], name: str, *, key: str) -> int | None:
    details = usage.get(name)
    return _count(details.get(key)) if isinstance(details, dict) else None
