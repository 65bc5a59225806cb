"""ChatHarness: the plain tool-calling loop, in this process."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import httpx

from rollbook.sdk.values import MessageDict
from rollbook.tasks.harnesses.base import Exchange, Harness, HarnessError

__all__ = ["ChatHarness"]


class ChatHarness(Harness):
    """Asks the model, calls the tools that it names, and asks again until it names none.

    `params` go into every request (temperature, max_tokens, …). Tools of one answer run side by side; an error of a
    tool is the tool's answer. The model's turns are bounded by the rollout's limits, not here.
    """

    name: ClassVar[str] = "chat"
    resumes: ClassVar[bool] = True

    def __init__(self, *, params: dict[str, Any] | None = None) -> None:
        self.params = dict(params or {})

    async def run(self, exchange: Exchange) -> list[MessageDict] | None:
        messages = list(exchange.messages)
        async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
            while True:
                answer = await _ask(client, exchange, self.params | _body(exchange, messages))
                messages.append(answer)
                calls = answer.get("tool_calls") or []
                if not calls:
                    return None
                messages += await asyncio.gather(*(_result(exchange, call) for call in calls))


def _body(exchange: Exchange, messages: list[MessageDict]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": exchange.model, "messages": messages}
    definitions = exchange.tools.definitions
    return body | {"tools": definitions} if definitions else body


async def _ask(client: httpx.AsyncClient, exchange: Exchange, body: dict[str, Any]) -> MessageDict:
    try:
        answer = await client.post(
            f"{exchange.base_url}/chat/completions", json=body, headers={"Authorization": f"Bearer {exchange.api_key}"}
        )
    except httpx.TransportError as error:
        raise HarnessError(f"the model call failed: {type(error).__name__} {error}") from error
    if answer.status_code != 200:
        raise HarnessError(f"the model call was answered with {answer.status_code}: {answer.text[:500]}")
    try:
        message: MessageDict = answer.json()["choices"][0]["message"]
    except (ValueError, LookupError, TypeError) as error:
        raise HarnessError(f"the model's answer is no chat completion: {answer.text[:500]}") from error
    return message


async def _result(exchange: Exchange, call: dict[str, Any]) -> MessageDict:
    function = call.get("function") or {}
    content = await exchange.tools.call(str(function.get("name")), function.get("arguments") or "{}")
    return {"role": "tool", "tool_call_id": call.get("id"), "content": content}
