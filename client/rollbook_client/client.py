"""The HTTP client of a rollout server: admit, poll, cancel, and watch its health."""

from __future__ import annotations

import asyncio
import functools
import math
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from rollbook_client.admission import Admission
from rollbook_client.answers import read_cancellation, read_health
from rollbook_client.connections import BorrowedConnections, Connections, OwnedConnections
from rollbook_client.handle import RolloutHandle
from rollbook_client.identifiers import new_idempotency_key, validate_idempotency_key, validate_rollout_id
from rollbook_client.idle import wait_until_idle
from rollbook_client.messages import (
    IDEMPOTENCY_KEY_HEADER,
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    MessageDict,
    RolloutInitResponse,
    RolloutResultResponse,
)
from rollbook_client.polling import ResultPoller
from rollbook_client.requests import encode_admission
from rollbook_client.saved import load_admission

CANCEL_TIMEOUT_SEC = 5.0


class RolloutClient:
    """Runs rollouts on the server at `url`, which may end in a path prefix.

    `http_client` is an httpx client of yours: it is used as it is configured and never closed here. Every rollout
    being polled holds one of its connections, so its limit must exceed the number of rollouts under way. Without it
    the client makes connections as it needs them, and `aclose` (or `async with`) closes them.

    `admission_timeout_sec` bounds each admission as a whole, its retries included; None waits for a place in a full
    queue without bound. `api_key` authenticates this client to the server and goes into every request; redirects are
    never followed, so it goes nowhere else.

    Raises:
        ValueError: a blank or unsendable `api_key`, or an `admission_timeout_sec` that is not finite.
    """

    def __init__(
        self,
        *,
        url: str,
        http_client: httpx.AsyncClient | None = None,
        admission_timeout_sec: float | None = None,
        api_key: str | None = None,
    ) -> None:
        if admission_timeout_sec is not None and not math.isfinite(admission_timeout_sec):
            raise ValueError(
                f"admission_timeout_sec is {admission_timeout_sec}; pass a finite number of seconds, "
                "or omit it to wait without bound"
            )
        self._url = url.rstrip("/")
        self._connections: Connections = OwnedConnections() if http_client is None else BorrowedConnections(http_client)
        self._admission_timeout_sec = admission_timeout_sec
        self._headers = {} if api_key is None else {"Authorization": _bearer(api_key)}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections this client made. A client that was passed stays open."""
        await self._connections.aclose()

    async def run_rollout(
        self,
        initial_messages: list[MessageDict],
        chat_completions_url: str,
        rollout_id: str,
        llm_api_key: str | None = None,
        label: str | None = None,
        metadata: dict[str, Any] | None = None,
        grade: bool = True,
        agent_timeout_sec: float | None = None,
        grader_timeout_sec: float | None = None,
        extra_fields: dict[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> RolloutResultResponse:
        """Admit a rollout and await its terminal result; arguments and errors as in `run_rollout_async`.

        A rollout that failed or was cancelled is a result too: look at `status`, `err_category` and `err_message`.
        Beside the admission's errors this raises those of `RolloutHandle.wait_for_completion`.
        """
        handle = await self.run_rollout_async(
            initial_messages,
            chat_completions_url,
            rollout_id,
            llm_api_key=llm_api_key,
            label=label,
            metadata=metadata,
            grade=grade,
            agent_timeout_sec=agent_timeout_sec,
            grader_timeout_sec=grader_timeout_sec,
            extra_fields=extra_fields,
            idempotency_key=idempotency_key,
        )
        return await handle

    async def run_rollout_async(
        self,
        initial_messages: list[MessageDict],
        chat_completions_url: str,
        rollout_id: str,
        llm_api_key: str | None = None,
        label: str | None = None,
        metadata: dict[str, Any] | None = None,
        grade: bool = True,
        agent_timeout_sec: float | None = None,
        grader_timeout_sec: float | None = None,
        extra_fields: dict[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> RolloutHandle:
        """Admit a rollout; once the server has it, give the handle that polls it.

        Use a new `rollout_id` for every attempt. `llm_api_key` is for the chat endpoint, not for the rollout server.
        The timeouts are seconds for the agent and the grader; omitted means unbounded. A full queue (429) is asked
        again until the admission timeout.

        `idempotency_key` goes out as the header of that name, by default a fresh one for each call: whatever on the way
        sends the request twice, a server that knows the header admits once and answers both. Pass one of yours (up to
        255 visible ASCII characters) to be able to make this very call again when you do not know how it ended: the
        same call with the same key then gets the rollout that the first one admitted. This client then repeats it too,
        where the connection fails or the answer is 502, 503 or 504 (after its `Retry-After`, if it has one): until the
        admission timeout, or for two minutes where there is none. Servers that do not know the header answer 409 for
        an id that they have.

        Raises:
            ValueError: an argument is out of range, or has no JSON form.
            RolloutProtocolError: the server refused, or answered something that is no admission.
            RolloutAdmissionTimeoutError: `admission_timeout_sec` is over; it says whether the server may have admitted.
            httpx.TransportError: the request failed. Without an `idempotency_key` of yours it is not repeated: the
                server may have it.
        """
        key = new_idempotency_key() if idempotency_key is None else idempotency_key
        validate_idempotency_key(key)
        body = encode_admission(
            {
                "initial_messages": initial_messages,
                "chat_completions_url": chat_completions_url,
                "rollout_id": rollout_id,
                "llm_api_key": llm_api_key,
                "label": label,
                "metadata": metadata,
                "grade": grade,
                "agent_timeout_sec": agent_timeout_sec,
                "grader_timeout_sec": grader_timeout_sec,
                "extra_fields": extra_fields,
            }
        )
        send = functools.partial(
            self._connections.request,
            "POST",
            f"{self._url}/rollout",
            # The key is the same for all tries of one call.
            headers={**self._headers, "Content-Type": "application/json", IDEMPOTENCY_KEY_HEADER: key},
            content=body,
        )
        admitted = await Admission(
            send,
            rollout_id=rollout_id,
            timeout_sec=self._admission_timeout_sec,
            repeatable=idempotency_key is not None,
        ).run()
        lease_deadline = admitted.requested_at + admitted.answer.polling_lease_timeout_sec
        return self._handle(admitted.answer, lease_deadline=lease_deadline)

    def attach(self, saved: bytes) -> RolloutHandle:
        """Go on polling a rollout from what `RolloutHandle.save` wrote, in this process or another.

        Whether its lease is still alive only the server knows; the first poll tells, and a lease that has ended is a
        result like any other (`failure`, `lease_expired`). Until that first answer the retries of a poll are bounded by
        one lease timeout from now: whoever polled before had stopped by then, so no lease of theirs lasts longer.

        Raises:
            ValueError: the bytes are no saved admission.
            RuntimeError: no event loop is running.
        """
        admission = load_admission(saved)
        now = asyncio.get_running_loop().time()
        return self._handle(admission, lease_deadline=now + admission.polling_lease_timeout_sec)

    async def cancel_rollout(self, rollout_id: str) -> CancelRolloutsResponse:
        """Ask the server to cancel a rollout; at most 5 s, everything included.

        The answer confirms the request only. Go on polling to see the terminal result, after the clean-up. Asking again
        is harmless.

        Raises:
            ValueError: this can be no rollout's id.
            TimeoutError: no answer within 5 s; the request may have arrived.
            RolloutProtocolError: the server answered something else.
            httpx.TransportError: the request failed.
        """
        validate_rollout_id(rollout_id)
        async with asyncio.timeout(CANCEL_TIMEOUT_SEC):
            response = await self._connections.request(
                "POST",
                f"{self._url}/rollout/cancel",
                headers={**self._headers, "Content-Type": "application/json"},
                content=msgspec.json.encode(CancelRolloutsRequest(ids=[rollout_id])),
                timeout_sec=CANCEL_TIMEOUT_SEC,
            )
        return read_cancellation(response)

    async def health(self) -> dict[str, Any]:
        """The server's health object: `instance_id`, `process_id`, `lifecycle`, and what its backend adds.

        Raises:
            RolloutProtocolError: the answer is not 200, or no JSON object.
            httpx.TransportError: the request failed.
        """
        return read_health(await self._connections.request("GET", f"{self._url}/health", headers=self._headers))

    async def wait_idle(
        self, *, timeout_sec: float = 120, poll_interval_sec: float = 1, process_id: str | None = None
    ) -> dict[str, Any]:
        """Wait until no rollout is active, and return that health object. New admissions are not held up.

        `process_id`, from an earlier health object, ties the wait to that server process; without it to the first one
        that answers.

        Raises:
            ValueError: a time is not positive and finite.
            TimeoutError: rollouts were still active, or the server could not be asked, after `timeout_sec`.
            RolloutProtocolError: the server was restarted meanwhile, reports no life cycle, or answered an error that
                waiting does not cure.
        """
        return await wait_until_idle(
            self.health, timeout_sec=timeout_sec, poll_interval_sec=poll_interval_sec, process_id=process_id
        )

    def _handle(self, admission: RolloutInitResponse, *, lease_deadline: float) -> RolloutHandle:
        return RolloutHandle(
            ResultPoller(
                self._connections, admission, url=self._url, headers=self._headers, lease_deadline=lease_deadline
            )
        )


def _bearer(api_key: str) -> str:
    if not api_key.strip():
        raise ValueError("api_key is blank; pass the server's key, or None for a server without one")
    if not (api_key.isascii() and api_key.isprintable()):
        raise ValueError("api_key holds characters that an HTTP header cannot carry; pass printable ASCII")
    return f"Bearer {api_key}"
