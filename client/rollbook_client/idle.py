"""Waits until a server reports no active rollout."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec

from rollbook_client.errors import RolloutProtocolError
from rollbook_client.messages import RolloutLifecycle

# What a server or a gateway answers while it is busy, starting or stopping: asking again may help.
_PASSING_STATUS_CODES = frozenset({408, 429, 500, 502, 503, 504})


async def wait_until_idle(
    health: Callable[[], Awaitable[dict[str, Any]]],
    *,
    timeout_sec: float,
    poll_interval_sec: float,
    process_id: str | None,
) -> dict[str, Any]:
    """As `RolloutClient.wait_idle` says; `health` asks the server once."""
    for name, value_sec in (("timeout_sec", timeout_sec), ("poll_interval_sec", poll_interval_sec)):
        if not math.isfinite(value_sec) or value_sec <= 0:
            raise ValueError(f"{name} is {value_sec}; pass a positive, finite number of seconds")
    last_seen = "the server has not answered"
    limit = asyncio.timeout(timeout_sec)
    try:
        async with limit:
            while True:
                try:
                    answer = await health()
                except RolloutProtocolError as error:
                    if error.status_code not in _PASSING_STATUS_CODES:
                        raise
                    last_seen = f"the server last answered {error.status_code}"
                except httpx.TransportError as error:
                    last_seen = f"the server could not be reached last ({type(error).__name__})"
                else:
                    process_id = _same_process(answer, process_id)
                    active_rollouts = _lifecycle(answer).active_rollouts
                    if active_rollouts == 0:
                        return answer
                    last_seen = f"{active_rollouts} rollouts were active last"
                await asyncio.sleep(poll_interval_sec)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(
            f"the server was not idle within {timeout_sec} s: {last_seen}; wait longer, or cancel what still runs"
        ) from error


def _same_process(health: dict[str, Any], expected: str | None) -> str:
    process_id = health.get("process_id")
    if not isinstance(process_id, str) or not process_id:
        raise RolloutProtocolError(
            "GET /health names no process_id, so a restart would go unnoticed; upgrade the server", status_code=200
        )
    if expected is not None and process_id != expected:
        raise RolloutProtocolError(
            f"the server's process_id changed from {expected!r} to {process_id!r}: it was restarted; "
            "read its health anew and decide what to wait for",
            status_code=200,
        )
    return process_id


def _lifecycle(health: dict[str, Any]) -> RolloutLifecycle:
    try:
        return msgspec.convert(health.get("lifecycle"), RolloutLifecycle)
    except msgspec.ValidationError as error:
        raise RolloutProtocolError(
            f"GET /health reports no valid lifecycle ({error}); upgrade the server", status_code=200
        ) from error
