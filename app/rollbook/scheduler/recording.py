"""Recording what runners report: each report is kept until the ledger has decided on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import CommandFailed, LedgerUnavailable, Refusal, Superseded
from rollbook.logformat import about

log = logging.getLogger(__name__)

RETRY_SEC = 0.2

Report = cmd.EnterPhase | cmd.FinishAttempt | cmd.CloseAttempt


class Recorder:
    """One per scheduler. ``on_ended`` is called with an execution's key once its end is decided."""

    def __init__(self, ledger: Ledger, on_ended: Callable[[int], None]) -> None:
        self._ledger = ledger
        self._on_ended = on_ended
        self._under_way: set[asyncio.Task[None]] = set()
        self._kept = 0
        """How many of them the ledger could not take at the first try."""
        self._kept_in_all = 0
        """The same since the outage began, those that are recorded by now included."""

    def record(self, report: Report, *, ends: int | None = None) -> None:
        """Record a report; ``ends`` is the key of the execution whose end it is."""
        task = asyncio.get_running_loop().create_task(self._record(report, ends))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

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

    async def _record(self, report: Report, ends: int | None) -> None:
        bare = kept = False
        extra = about(report.rollout_id, attempt=report.attempt, scheduler=report.scheduler)
        while True:
            try:
                await self._ledger.submit(report)
            except LedgerUnavailable as error:
                # A ledger that cannot be written now keeps the result waiting, not lost.
                if not kept:
                    kept = True
                    self._keep(report, error)
                await asyncio.sleep(RETRY_SEC)
                continue
            except Superseded:
                if ends is not None:  # said of an attempt's end, and not of its phases as well
                    log.info(
                        "rollout %s: the report of superseded attempt %d is dropped",
                        report.rollout_id,
                        report.attempt,
                        extra=extra,
                    )
            except CommandFailed as error:
                log.error("rollout %s: its report was refused: %s", report.rollout_id, error, extra=extra)
                if isinstance(report, cmd.FinishAttempt) and not bare:
                    report, bare = _bare(report, str(error)), True
                    continue
            except Refusal as error:
                log.error("rollout %s: its report was refused: %s", report.rollout_id, error, extra=extra)
            break
        if kept:
            self._let_go(report)
        if ends is not None:
            self._on_ended(ends)

    def _keep(self, report: Report, error: LedgerUnavailable) -> None:
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

    def _let_go(self, report: Report) -> None:
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
