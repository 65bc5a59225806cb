"""ChatHarness: the plain tool-calling loop, in this process."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
import ssl
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx

from rollbook.sdk.values import MessageDict
from rollbook.tasks.checks import check_finite, check_whole
from rollbook.tasks.harnesses.base import Exchange, Harness, HarnessError
from rollbook_client.retries import retry_after_sec

__all__ = ["ChatHarness"]

PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 529})
"""What may be over when the same is asked again."""

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Alone, as in the names of files that are not UTF-8. No model server takes it."""


class ChatHarness(Harness):
    """Asks the model, calls the tools that it names, and asks again until it names none.

    `model` is the name to ask for, by default `policy`. `params` go into every request (temperature, max_tokens, …).
    Tools of one answer run side by side; an error of a tool is the tool's answer. The model's turns are bounded by the
    rollout's limits, not here. A call that failed of what may pass (no connection, 408, 429, 5xx) is made up to `tries`
    times, each after twice the time or as the model server says by ``Retry-After``.
    """

    name: ClassVar[str] = "chat"
    resumes: ClassVar[bool] = True

    def __init__(
        self,
        *,
        model: str | None = None,
        params: Mapping[str, Any] | None = None,
        tries: int = 5,
        backoff_sec: float = 0.5,
    ) -> None:
        check_whole(tries, "tries", least=1, optional=False)
        check_finite(backoff_sec, "backoff_sec", least=0)
        self.model = model
        self.params = dict(params or {})
        self.tries, self.backoff_sec = tries, backoff_sec

    async def run(self, exchange: Exchange) -> list[MessageDict] | None:
        messages = list(exchange.messages)
        async with httpx.AsyncClient(timeout=None, trust_env=False, verify=_authorities()) as client:
            while True:
                answer = await self._ask(client, exchange, self.params | self._body(exchange, messages))
                messages.append(answer)
                calls = answer.get("tool_calls") or []
                if not calls:
                    return None
                messages += await asyncio.gather(*(_result(exchange, call) for call in calls))

    def _body(self, exchange: Exchange, messages: list[MessageDict]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model or exchange.model, "messages": messages}
        definitions = exchange.tools.definitions
        return body | {"tools": definitions} if definitions else body

    async def _ask(self, client: httpx.AsyncClient, exchange: Exchange, body: dict[str, Any]) -> MessageDict:
        url = f"{exchange.base_url}/chat/completions"
        headers = {"Authorization": f"Bearer {exchange.api_key}", "Content-Type": "application/json"}
        sent = json.dumps(body, allow_nan=False).encode()  # ASCII: what has no UTF-8 form goes back as it came
        number = 0
        while True:
            number += 1
            delay_sec = self.backoff_sec * 2 ** (number - 1) * random.uniform(0.5, 1.0)
            try:
                answer = await client.post(url, content=sent, headers=headers)
            except httpx.TransportError as error:
                failure = HarnessError(f"the model call failed: {type(error).__name__} {error}")
            else:
                if answer.status_code == 200:
                    return _message(answer)
                failure = HarnessError(f"the model call was answered with {answer.status_code}: {answer.text[:500]}")
                if answer.status_code not in PASSING_STATUSES:
                    raise failure
                if "retry-after" in answer.headers:
                    delay_sec = retry_after_sec(answer.headers["retry-after"])
            if number == self.tries:
                raise failure
            await asyncio.sleep(delay_sec)


@functools.cache
def _authorities() -> ssl.SSLContext:
    """Read once: reading them takes longer than a call through the endpoint."""
    return httpx.create_ssl_context(trust_env=False)


def _message(answer: httpx.Response) -> MessageDict:
    try:
        message = answer.json()["choices"][0]["message"]
    except (ValueError, LookupError, TypeError) as error:
        raise HarnessError(f"the model's answer is no chat completion: {answer.text[:500]}") from error
    if not isinstance(message, dict):
        raise HarnessError(f"the model's answer has no message: {answer.text[:500]}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        raise HarnessError(f"the model's answer has a tool call that is none: {answer.text[:500]}")
    return message


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function") or {}, dict)


async def _result(exchange: Exchange, call: dict[str, Any]) -> MessageDict:
    function = call.get("function") or {}
    content = await exchange.tools.call(str(function.get("name")), function.get("arguments") or "{}")
    return {"role": "tool", "tool_call_id": call.get("id"), "content": _SURROGATE.sub("\ufffd", content)}
