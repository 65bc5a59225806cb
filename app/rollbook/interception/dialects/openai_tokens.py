"""Token ids and log probabilities where a server sends them: OpenAI's logprobs, vLLM's lists of token ids."""

from __future__ import annotations

import math
from typing import Any

from rollbook.traces.calls import CallTokens

_ID_PREFIX = "token_id:"
"""How vLLM writes tokens when it is asked for ids in place of texts."""


def choice_tokens(fields: dict[str, Any], choice: dict[str, Any]) -> CallTokens | None:
    """The tokens of an answer's choice; None where the server sent none."""
    logprobs, logprob_ids = read_logprobs(choice)
    return tokens_of(read_prompt_ids(fields, choice), read_ids(choice.get("token_ids")) or logprob_ids, logprobs)


def tokens_of(prompt_ids: list[int] | None, ids: list[int] | None, logprobs: list[float] | None) -> CallTokens | None:
    """The parts that are there, as one; None where none is."""
    if prompt_ids is None and ids is None and logprobs is None:
        return None
    return CallTokens(prompt_ids=prompt_ids, ids=ids, logprobs=logprobs)


def read_prompt_ids(fields: dict[str, Any], choice: dict[str, Any] | None) -> list[int] | None:
    """The prompt's token ids, from the answer or from its choice."""
    found = read_ids(fields.get("prompt_token_ids"))
    return read_ids(choice.get("prompt_token_ids")) if found is None and choice is not None else found


def read_ids(value: Any) -> list[int] | None:
    """A list of token ids; None for anything else."""
    return value if isinstance(value, list) and all(type(item) is int for item in value) else None


def read_logprobs(choice: dict[str, Any]) -> tuple[list[float] | None, list[int] | None]:
    """Log probabilities and, where tokens are written as ids, the ids; each whole or None."""
    content = choice.get("logprobs")
    content = content.get("content") if isinstance(content, dict) else None
    if not isinstance(content, list):
        return None, None
    logprobs: list[float] = []
    ids: list[int] = []
    for item in content:
        logprob = item.get("logprob") if isinstance(item, dict) else None
        if not isinstance(logprob, int | float) or isinstance(logprob, bool) or not math.isfinite(logprob):
            return None, None
        logprobs.append(float(logprob))
        token = item.get("token")
        if isinstance(token, str) and token.startswith(_ID_PREFIX) and token[len(_ID_PREFIX) :].isdecimal():
            ids.append(int(token[len(_ID_PREFIX) :]))
    return logprobs, ids if ids and len(ids) == len(logprobs) else None
