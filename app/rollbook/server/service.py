"""The service: what the API does, without a word of HTTP. Routes parse, call it and answer.

It holds no state that would be missed: every process that has the ledger and the key can answer any request.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from uuid import uuid4

from rollbook.ledger.commands import Cancel
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable, UnknownRollout
from rollbook.settings import ApiSettings
from rollbook_client.messages import (
    CancelRolloutsRequest,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutStatusResponse,
    require_lease_timing,
)
from rollbook_client.statuses import CancelDisposition, RolloutStatus
from rollbook_projections import RolloutState

from .admission import admission
from .errors import ONE_SELECTOR, SHUTTING_DOWN, ApiError
from .health import Health, LoopTrouble, take_health
from .meters import ProcessMeters
from .metrics import metrics_text
from .outages import Outages
from .polling import poll_rollout, retention_is_over
from .streams import Pulse

PROCESS_ID_VARIABLE = "ROLLBOOK_PROCESS_ID"
LISTED_FOR_US = 15 * 60 * MICROSECONDS
"""How long after its end `all` and `prefix` list a rollout, as `not_found`: the answer stays bounded."""

_PHASES = frozenset({RolloutStatus.RUNNING, RolloutStatus.GRADING})


class ApiService:
    """One per API. Make it anywhere; its ledger may come later, by `attach`, once there is an event loop."""

    def __init__(self, ledger: Ledger | None, settings: ApiSettings, *, process_id: str | None = None) -> None:
        """``process_id`` defaults to the environment's, which a group behind one balancer shares, else a fresh one.

        Raises:
            ValueError: a setting is out of its range; the message names it.
        """
        check_settings(settings)
        self.settings = settings
        self.process_id = process_id or os.environ.get(PROCESS_ID_VARIABLE) or str(uuid4())
        self.instance_id = settings.instance_id or self.process_id
        self.loops: dict[str, Callable[[], str | None]] = {}
        """This process's background loops by name, each with what troubles it now; health shows them."""
        self.meters = ProcessMeters()
        self.outages = Outages(lasts=self._troubled)
        self.pulse = Pulse()
        self.accepting = True
        self.waiting = True
        """Whether polls and streams may wait; off once the process shuts down."""
        self._ledger: Ledger | None = None
        if ledger is not None:
            self.attach(ledger)

    def attach(self, ledger: Ledger) -> None:
        """Serve from this open ledger, from now on or again; call it on the loop that serves."""
        self._ledger = ledger
        self.outages = Outages(lasts=self._troubled)
        self.pulse = Pulse()
        self.accepting = self.waiting = True
        self.loops["feed"] = lambda: ledger.feed.trouble
        ledger.feed.listen(self.pulse.beat)
        self.meters.attach(ledger)

    def _troubled(self) -> bool:
        return any(tell() is not None for tell in self.loops.values())

    @property
    def ledger(self) -> Ledger:
        """The ledger.

        Raises:
            LedgerUnavailable: it is not open yet.
        """
        if self._ledger is None:
            raise LedgerUnavailable("the ledger is not open yet")
        return self._ledger

    def stop_admissions(self) -> None:
        """From now on admissions are refused with 503; all else goes on."""
        self.accepting = False

    def end_waits(self) -> None:
        """Answer every parked poll and end every stream now, and let none wait any more."""
        self.waiting = False
        if self._ledger is not None:
            self._ledger.feed.release_waiters()
        self.pulse.release()

    async def admit(self, request: RolloutInitRequest, *, idempotency_key: str | None = None) -> RolloutInitResponse:
        """Take a rollout in; when this returns, it is on disk.

        The same request with the same idempotency key has the same answer again, whatever became of the rollout.

        Raises:
            ApiError: 503, shutting down; 422, the endpoint's URL or key has no UTF-8 form.
            KeyReused, AdmissionClosed, QueueFull, RolloutKnown, LedgerUnavailable: from the ledger.
        """
        if not self.accepting:
            raise ApiError(503, SHUTTING_DOWN)
        ledger = self.ledger
        asked = admission(request, self.settings, ledger.keys, idempotency_key=idempotency_key)
        state = await ledger.submit(asked.command)
        return RolloutInitResponse(
            rollout_id=request.rollout_id,
            status=RolloutStatus.QUEUED,
            polling_lease_token=asked.tokens[state.lease_digest],
            result_wait_timeout_sec=self.settings.result_wait_timeout_sec,
            polling_lease_timeout_sec=self._lease_timeout_sec(state),
        )

    def _lease_timeout_sec(self, state: RolloutState) -> float:
        """What the rollout was admitted with, perhaps long ago and by an API with another setting."""
        told_sec = self.settings.polling_lease_timeout_sec
        same = int(told_sec * MICROSECONDS) == state.lease_timeout_us
        return told_sec if same else state.lease_timeout_us / MICROSECONDS

    async def poll(self, rollout_id: str, token: str) -> bytes:
        """Renew the lease, wait for a change of status, and tell the result as it then stands, as JSON.

        Raises:
            UnknownRollout, WrongLease, LedgerUnavailable: from the ledger.
        """
        wait_sec = self.settings.result_wait_timeout_sec if self.waiting else 0.0
        return await poll_rollout(
            self.ledger,
            rollout_id,
            token=token,
            wait_sec=wait_sec,
            retention_sec=self.settings.result_retention_sec,
        )

    async def cancel(self, request: CancelRolloutsRequest) -> dict[str, CancelDisposition]:
        """Ask to end the selected rollouts; what was found for each.

        Raises:
            ApiError: 422, not exactly one selector.
            LedgerUnavailable: nothing was asked for.
        """
        selectors = (request.ids is not None) + (request.prefix is not None) + request.all
        if selectors != 1:
            raise ApiError(422, ONE_SELECTOR)
        if request.ids == []:
            return {}
        command = Cancel(
            requested_by="api",
            ids=None if request.ids is None else tuple(dict.fromkeys(request.ids)),
            prefix=request.prefix,
            everything=request.all,
            listed_since=self.ledger.clock() - LISTED_FOR_US,
        )
        return await self.ledger.submit(command)

    async def status(self, rollout_id: str) -> RolloutStatusResponse:
        """Where a rollout stands; no lease is needed and none is renewed.

        Raises:
            UnknownRollout: no such rollout, or its retention is over.
        """
        state = await self.state(rollout_id)
        if retention_is_over(state, self.settings.result_retention_sec, now_us=self.ledger.clock()):
            raise UnknownRollout(rollout_id)
        status = RolloutStatus(state.status)
        return RolloutStatusResponse(
            rollout_id=rollout_id,
            status=status,
            phase=status if status in _PHASES else None,
            attempt=state.attempt,
            max_attempts=state.max_attempts,
            queue=state.queue,
        )

    async def state(self, rollout_id: str) -> RolloutState:
        """A rollout's row.

        Raises:
            UnknownRollout: no such rollout.
        """
        state = await self.ledger.reader.state(rollout_id)
        if state is None:
            raise UnknownRollout(rollout_id)
        return state

    async def health(self) -> Health:
        """The whole deployment's health as this process sees it; costs the same however much the ledger holds."""
        trouble = [LoopTrouble(name, text) for name, tell in self.loops.items() if (text := tell()) is not None]
        return await take_health(
            self.ledger,
            queue=self.settings.queue,
            instance_id=self.instance_id,
            process_id=self.process_id,
            accepting=self.accepting,
            background=trouble,
        )

    async def metrics(self) -> bytes:
        """This process's metrics and the ledger's, as text; costs the same however much the ledger holds."""
        return await metrics_text(self._ledger, self.meters, queue=self.settings.queue)


def check_settings(settings: ApiSettings) -> None:
    """Refuse settings that no API can serve with.

    Raises:
        ValueError: names the setting, its value and its range.
    """
    require_lease_timing(
        result_wait_timeout_sec=settings.result_wait_timeout_sec,
        polling_lease_timeout_sec=settings.polling_lease_timeout_sec,
    )
    if settings.api_key is not None and not settings.api_key.strip():
        raise ValueError("api_key is blank; pass a key, or None to serve without one")
    if settings.operator_api_key is not None:
        if not settings.operator_api_key.strip():
            raise ValueError("operator_api_key is blank; pass a key, or None where api_key is for operators too")
        if settings.operator_api_key == settings.api_key:
            raise ValueError("operator_api_key is api_key again; pass another key, or None where one is for both")
    retention = settings.result_retention_sec
    if retention is not None and not (math.isfinite(retention) and retention >= 0):
        raise ValueError(f"result_retention_sec is {retention}; pass zero or more seconds, or None to keep results")
    for name, least in (("max_request_bytes", 1), ("max_attempts", 1), ("max_queue_depth", 0)):
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; pass at least {least}")
