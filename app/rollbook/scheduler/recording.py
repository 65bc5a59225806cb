"""Recording what runners report: each report is kept until the ledger has decided on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import CommandFailed, LedgerError, LedgerUnavailable, Refusal, Superseded
from rollbook.logformat import about
from rollbook_client.events import Event

from .lanes import MAX_WAITING_BYTES, Lane, weight

log = logging.getLogger(__name__)

RETRY_SEC = 0.2

Report = cmd.EnterPhase | cmd.FinishAttempt | cmd.CloseAttempt


class Recorder:
    """One per scheduler. ``on_ended`` is called with an execution's key once its end is decided."""

    def __init__(self, ledger: Ledger, on_ended: Callable[[int], None]) -> None:
        self._ledger = ledger
        self._on_ended = on_ended
        self._under_way: set[asyncio.Task[None]] = set()
        self._lanes: dict[int, Lane] = {}
        """By the keys of executions that recorded something and have not ended."""
        self._waiting_bytes = 0
        self._kept = 0
        """How many of them the ledger could not take at the first try."""
        self._kept_in_all = 0
        """The same since the outage began, those that are recorded by now included."""

    def note(self, command: cmd.Record, *, key: int) -> None:
        """Record what an attempt tells of itself, after what it told before and before its end."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(command.rollout_id, command.attempt, command.scheduler)
        if lane.superseded:
            return
        for event in command.events:
            size = weight(event)
            if self._waiting_bytes + size > MAX_WAITING_BYTES:
                self._turn_away(lane)
                continue
            self._waiting_bytes += size
            lane.put(event)
        if lane.task is None or lane.task.done():
            lane.task = self._begin(self._empty(lane))

    def record(self, report: Report, *, ends: int | None = None) -> None:
        """Record a report; ``ends`` is the key of the execution whose end it is."""
        lane = None if ends is None else self._lanes.pop(ends, None)
        self._begin(self._record(report, ends, lane))

    def forget(self, key: int) -> None:
        """Nothing more comes of an execution; what it recorded so far is still tried."""
        self._lanes.pop(key, None)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def settle(self, timeout_sec: float) -> None:
        """Wait for the reports under way; those that cannot be recorded in time are given up."""
        if not self._under_way:
            return
        _, left = await asyncio.wait(self._under_way, timeout=timeout_sec)
        if left:
            log.error("%d reports could not be recorded in time; their rollouts are run again", len(left))
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    async def _record(self, report: Report, ends: int | None, lane: Lane | None) -> None:
        if lane is not None:
            if lane.task is not None:
                await asyncio.wait({lane.task})
            if isinstance(report, cmd.FinishAttempt):
                report = lane.rest_of(report)
        extra = about(report.rollout_id, attempt=report.attempt, scheduler=report.scheduler)
        bare: cmd.FinishAttempt | None = None
        while True:
            try:
                await self._decided(report)
            except Superseded:
                if ends is not None:  # said of an attempt's end, and not of its phases as well
                    log.info(
                        "rollout %s: the report of superseded attempt %d is dropped",
                        report.rollout_id,
                        report.attempt,
                        extra=extra,
                    )
            except (CommandFailed, Refusal) as error:
                log.error("rollout %s: its report was refused: %s", report.rollout_id, error, extra=extra)
                if isinstance(error, CommandFailed) and isinstance(report, cmd.FinishAttempt) and report is not bare:
                    report = bare = _bare(report, str(error))
                    continue
            break
        if ends is not None:
            self._on_ended(ends)

    async def _empty(self, lane: Lane) -> None:
        """Record what waits in a lane, and what comes meanwhile."""
        while events := lane.take():
            try:
                if not lane.superseded:
                    await self._take_in(lane, events)
            finally:
                self._waiting_bytes -= sum(map(weight, events))

    async def _take_in(self, lane: Lane, events: tuple[Event, ...]) -> None:
        """Record some events; where the ledger does not take all of them, each by itself."""
        try:
            await self._decided(cmd.Record(lane.rollout_id, lane.attempt, lane.scheduler, events))
        except Superseded:
            lane.superseded = True
        except (CommandFailed, Refusal) as error:
            if len(events) > 1:
                for event in events:
                    if not lane.superseded:
                        await self._take_in(lane, (event,))
                return
            log.error(
                "rollout %s: its %s is not recorded: %s",
                lane.rollout_id,
                events[0].TYPE,
                error,
                extra=about(lane.rollout_id, attempt=lane.attempt, scheduler=lane.scheduler),
            )
        else:
            lane.landed(events)

    def _turn_away(self, lane: Lane) -> None:
        if not lane.full:
            lane.full = True
            log.error(
                "rollout %s: records of it are lost: %d MB of records wait for the ledger already",
                lane.rollout_id,
                self._waiting_bytes // 1_000_000,
                extra=about(lane.rollout_id, attempt=lane.attempt, scheduler=lane.scheduler),
            )

    async def _decided(self, report: Report | cmd.Record) -> None:
        """Submit until the ledger has decided. A ledger that cannot be written now keeps it waiting, not lost.

        Raises:
            LedgerError: it was refused.
        """
        kept = False
        while True:
            refused: LedgerError | None = None
            try:
                await self._ledger.submit(report)
            except LedgerUnavailable as error:
                if not kept:
                    kept = True
                    self._keep(report, error)
                await asyncio.sleep(RETRY_SEC)
                continue
            except LedgerError as error:
                refused = error
            break
        if kept:
            self._let_go(report)
        if refused is not None:
            raise refused

    def _keep(self, report: Report | cmd.Record, error: LedgerUnavailable) -> None:
        """Once for an outage and not for each report: there are thousands."""
        if not self._kept:
            log.warning(
                "%s; reports of attempts are kept and tried again (%d so far)",
                error,
                len(self._under_way),
                extra=about(scheduler=report.scheduler),
            )
        self._kept += 1
        self._kept_in_all += 1

    def _let_go(self, report: Report | cmd.Record) -> None:
        self._kept -= 1
        if not self._kept:
            log.warning(
                "the ledger can be written again; it has all reports of attempts that were kept (%d)",
                self._kept_in_all,
                extra=about(scheduler=report.scheduler),
            )
            self._kept_in_all = 0


def _bare(report: cmd.FinishAttempt, reason: str) -> cmd.FinishAttempt:
    """A result that the ledger cannot take still ends its rollout, as what it is: a failure of ours."""
    return cmd.FinishAttempt(
        rollout_id=report.rollout_id,
        attempt=report.attempt,
        scheduler=report.scheduler,
        status="failure",
        err_message=f"the result could not be recorded: {reason}",
        err_category="internal_error",
    )
