"""The scheduler: claims work for free slots, hands it to runners and records what they report.

Every command of an attempt carries (attempt, scheduler) and is refused once it is no longer the current one, so
whatever this process believes, a superseded attempt's result does not land.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from uuid import uuid4

import msgspec

from rollbook.ledger import commands as cmd
from rollbook.ledger.codec import CodecError
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.liveness import host_name, joined, known_dead, left
from rollbook.ledger.reader import Work
from rollbook.ledger.refusals import CommandFailed, LedgerUnavailable, Refusal, SchedulerGone, Superseded
from rollbook.ledger.secrets import SecretKeyError
from rollbook.ledger.sqlite import clock_us
from rollbook.settings import SchedulerSettings
from rollbook_client.events import Phase, StageSpan
from rollbook_projections import RolloutState

from .loops import Loop
from .runners import Deadline, Lost, RunnerPool
from .sweeps import Sweeper
from .wire import Assignment, Finished

log = logging.getLogger(__name__)

CLAIM_LIMIT = 256
BACKSTOP_SEC = 1.0
RETRY_SEC = 0.2


class Attempt(msgspec.Struct):
    """An attempt this process owns."""

    rollout_id: str
    number: int
    attempt: int
    scheduler: str
    queued: StageSpan
    cancelled: bool = False


class Scheduler:
    """One per process, on one event loop, over any pool of runners."""

    def __init__(
        self,
        ledger: Ledger,
        settings: SchedulerSettings,
        pool: RunnerPool,
        *,
        on_broken: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._pool = pool
        self._on_broken = on_broken
        self._keys = 0
        self._attempts: dict[int, Attempt] = {}
        self._by_number: dict[int, int] = {}
        self._recording: set[asyncio.Task[None]] = set()
        self._claiming = True
        self._claim_under_way = False
        self._releasing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._beaten_at = 0.0
        self.member_id = uuid4().hex
        self._claims = Loop("claims", self._claim_once, interval_sec=BACKSTOP_SEC)
        self._beats = Loop("beats", self._beat_once, interval_sec=settings.beat_interval_sec)
        self._sweeper = Sweeper(ledger, dead_after_us=_us(settings.dead_after_sec))
        self._sweeps = Loop("sweeps", self._sweeper.run_once, interval_sec=settings.sweep_interval_sec)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The background loops, for health."""
        return (self._claims, self._beats, self._sweeps)

    @property
    def active(self) -> int:
        """How many attempts of this process are not recorded as ended."""
        return len(self._attempts)

    async def start(self) -> None:
        """Register, start the runners and the loops.

        Raises:
            QueueTaken: a live scheduler serves one of the queues with another entrypoint.
            LedgerUnavailable: the ledger cannot be written.
        """
        await self._register()
        self._ledger.feed.listen(self._told)
        await self._pool.start(self)
        for loop in self.loops:
            loop.start()

    async def _register(self) -> None:
        settings = self._settings
        joined(self.member_id)
        await self._ledger.submit(
            cmd.Register(
                member_id=self.member_id,
                kind="scheduler",
                host=host_name(),
                pid=os.getpid(),
                dead_after_us=_us(settings.dead_after_sec),
                entrypoint=settings.entrypoint,
                queues=settings.queues,
                capacity=self._pool.capacity,
                known_dead=known_dead(self._ledger.reader, "scheduler"),
            )
        )
        self._beaten_at = asyncio.get_running_loop().time()

    # Claims

    async def _claim_once(self) -> None:
        while self._claiming:
            limit = min(self._pool.free, CLAIM_LIMIT)
            counts = self._ledger.reader.counts()
            waiting = sum(counts[queue].queued for queue in self._settings.queues if queue in counts)
            if limit <= 0 or waiting <= 0:
                return
            self._claim_under_way = True
            try:
                claimed = await self._ledger.submit(
                    cmd.Claim(scheduler=self.member_id, queues=self._settings.queues, limit=limit)
                )
                self._dispatch(claimed)
            except SchedulerGone:
                self._beats.wake()
                return
            finally:
                self._claim_under_way = False
            if not claimed and waiting <= limit:
                return

    def _dispatch(self, claimed: tuple[RolloutState, ...]) -> None:
        works = {work.number: work for work in self._ledger.reader.work(claimed)}
        for state in claimed:
            self._keys += 1
            key = self._keys
            self._own(key, state)
            work = works.get(state.number)
            if work is None:
                self.lost(Lost(key, "its secrets were gone when the attempt started"))
                continue
            self._start(key, state, work)

    def _own(self, key: int, state: RolloutState) -> None:
        queued = StageSpan(stage="queue", started_at=state.queued_at, ended_at=max(clock_us(), state.queued_at))
        self._attempts[key] = Attempt(state.rollout_id, state.number, state.attempt, state.scheduler or "", queued)
        self._by_number[state.number] = key
        self._idle.clear()

    def _start(self, key: int, state: RolloutState, work: Work) -> None:
        request = work.request
        try:
            secrets = self._ledger.keys.open(work.sealed, state.rollout_id)
        except SecretKeyError as error:
            self.finished(Finished(key=key, status="failure", err_message=str(error), err_category="internal_error"))
            return
        queued = self._attempts[key].queued
        queued_us = queued.ended_at - queued.started_at
        limits = msgspec.json.decode(request.request, type=_Limits, strict=False)
        agent = limits.agent_timeout_sec
        deadline = Deadline(
            agent_sec=agent,
            agent_left_sec=None if agent is None else agent - queued_us / 1e6,
            grader_sec=limits.grader_timeout_sec,
        )
        assignment = Assignment(
            key=key,
            rollout_id=state.rollout_id,
            request=bytes(request.request),
            chat_completions_url=secrets.chat_completions_url,
            llm_api_key=secrets.llm_api_key,
            queued_sec=queued_us / 1e6,
        )
        self._pool.run(assignment, deadline)
        if state.cancel_requested_at is not None or state.terminal:
            self._cancel(key)

    # What the ledger's feed tells

    def _told(self, changed: dict[int, RolloutState]) -> None:
        queues = self._settings.queues
        for number, state in changed.items():
            key = self._by_number.get(number)
            if key is not None:
                self._judge(key, state)
            elif state.claimable and state.queue in queues:
                self._claims.wake()

    def _judge(self, key: int, state: RolloutState) -> None:
        attempt = self._attempts[key]
        if state.attempt < attempt.attempt:
            return  # read before our claim
        if state.attempt != attempt.attempt or state.scheduler != attempt.scheduler:
            self._cancel(key)  # somebody else has it, or it is closed: this execution works for nobody
        elif state.cancel_requested_at is not None or state.terminal:
            self._cancel(key)

    def _cancel(self, key: int) -> None:
        attempt = self._attempts[key]
        if not attempt.cancelled:
            attempt.cancelled = True
            self._pool.cancel(key)

    # What runners report

    def slots_changed(self) -> None:
        """Slots became free or went away."""
        self._claims.wake()

    def broken(self, reason: str) -> None:
        """The entrypoint cannot be loaded."""
        self._on_broken(reason)

    def entered(self, key: int, phase: Phase) -> None:
        """An execution entered a phase."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._record(None, cmd.EnterPhase(attempt.rollout_id, attempt.attempt, attempt.scheduler, phase))

    def finished(self, report: Finished) -> None:
        """An execution is over: record how."""
        attempt = self._attempts.get(report.key)
        if attempt is None:
            return
        if report.status == "cancelled" and self._releasing:
            self.lost(Lost(report.key, "the scheduler was shut down", released=True))
            return
        rewards = () if report.reward is None else (cmd.Score("reward", report.reward),)
        self._record(
            report.key,
            cmd.FinishAttempt(
                rollout_id=attempt.rollout_id,
                attempt=attempt.attempt,
                scheduler=attempt.scheduler,
                status=report.status,
                phases=report.phases,
                sample=report.sample,
                reduced=report.reduced,
                trajectory=report.trajectory,
                trajectory_saved=report.trajectory_saved,
                err_message=report.err_message,
                err_category=report.err_category,
                spans=(attempt.queued, *report.spans),
                rewards=rewards,
                metrics=tuple(cmd.Score(name, value) for name, value in report.metrics.items()),
            ),
        )

    def lost(self, loss: Lost) -> None:
        """An execution is gone: give its rollout back."""
        attempt = self._attempts.get(loss.key)
        if attempt is not None:
            self._record(
                loss.key,
                cmd.CloseAttempt(
                    rollout_id=attempt.rollout_id,
                    attempt=attempt.attempt,
                    scheduler=attempt.scheduler,
                    outcome="released" if loss.released else "lost",
                    reason=loss.reason,
                ),
            )

    def _record(self, ends: int | None, command: cmd.EnterPhase | cmd.FinishAttempt | cmd.CloseAttempt) -> None:
        task = asyncio.get_running_loop().create_task(self._submit(ends, command))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)

    async def _submit(self, ends: int | None, command: cmd.EnterPhase | cmd.FinishAttempt | cmd.CloseAttempt) -> None:
        """Record until it is decided: a ledger that cannot be written now keeps the result waiting, not lost."""
        while True:
            try:
                await self._ledger.submit(command)
            except LedgerUnavailable as error:
                log.warning("rollout %s: %s; its report is kept and tried again", command.rollout_id, error)
                await asyncio.sleep(RETRY_SEC)
                continue
            except Superseded:
                log.info(
                    "rollout %s: the report of superseded attempt %d is dropped", command.rollout_id, command.attempt
                )
            except (CommandFailed, CodecError) as error:
                log.error("rollout %s: its report was refused: %s", command.rollout_id, error)
                if ends is not None and isinstance(command, cmd.FinishAttempt):
                    command = _without_payload(command, str(error))
                    continue
            except Refusal as error:
                log.error("rollout %s: its report was refused: %s", command.rollout_id, error)
            break
        if ends is not None:
            self._forget(ends)

    def _forget(self, key: int) -> None:
        attempt = self._attempts.pop(key, None)
        if attempt is not None and self._by_number.get(attempt.number) == key:
            del self._by_number[attempt.number]
        if not self._attempts:
            self._idle.set()

    # Beats

    async def _beat_once(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            await self._ledger.submit(
                cmd.Beat(
                    member_id=self.member_id,
                    accepting=self._claiming,
                    capacity=self._pool.capacity,
                    trouble=self._trouble(),
                )
            )
        except SchedulerGone:
            log.error("this scheduler was declared dead; it stops its attempts and registers anew")
            await self._start_anew()
        except LedgerUnavailable:
            if now - self._beaten_at > self._settings.beat_lost_after_sec and self._attempts:
                log.error("no beat was accepted for %.0f s; the attempts are stopped", now - self._beaten_at)
                await self._stop_attempts()
            raise
        else:
            self._beaten_at = now
            self._close_orphans()

    def _trouble(self) -> str | None:
        troubles = [f"{loop.name}: {loop.trouble}" for loop in self.loops if loop.trouble]
        if self._pool.trouble:
            troubles.append(f"runners: {self._pool.trouble}")
        if self._ledger.feed.trouble:
            troubles.append(f"feed: {self._ledger.feed.trouble}")
        return "; ".join(troubles) or None

    async def _start_anew(self) -> None:
        await self._stop_attempts()
        left(self.member_id)
        self.member_id = uuid4().hex
        await self._register()
        self._claims.wake()

    async def _stop_attempts(self) -> None:
        """Others may have our rollouts by now: end the executions, and drop what they would still report."""
        keys = list(self._attempts)
        for key in keys:
            self._pool.cancel(key)
            self._forget(key)

    def _close_orphans(self) -> None:
        """Attempts that the ledger says are ours though we know nothing of them: a claim whose answer was lost."""
        if self._claim_under_way:
            return
        known = {(attempt.number, attempt.attempt) for attempt in self._attempts.values()}
        for state in self._ledger.reader.owned_by(self.member_id):
            if (state.number, state.attempt) not in known:
                self._keys += 1
                self._own(self._keys, state)
                self.lost(Lost(self._keys, "the answer to its claim was lost", released=True))

    # Shutdown

    async def stop(self) -> None:
        """Stop claiming, wait for what runs, then release or cancel the rest; see `SchedulerSettings`."""
        settings = self._settings
        self._claiming = False
        await self._claims.stop()
        if not await self._drained(settings.drain_sec):
            if settings.on_shutdown == "release":
                await self._release()
            else:
                await self._cancel_all()
        await self._sweeps.stop()
        await self._pool.stop(settings.clean_up_sec)
        if self._recording:
            await asyncio.wait(self._recording, timeout=settings.force_sec)
        await self._beats.stop()
        left(self.member_id)
        try:
            await self._ledger.submit(cmd.Leave(self.member_id))
        except LedgerUnavailable as error:
            log.warning("this scheduler could not say that it leaves; its attempts are taken over later: %s", error)

    async def _drained(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _release(self) -> None:
        log.info("%d rollouts still run; they go back to their queue", len(self._attempts))
        self._releasing = True
        for key in list(self._attempts):
            self._pool.cancel(key)
        if not await self._drained(self._settings.force_sec):
            await self._pool.kill()
            for key in list(self._attempts):
                self.lost(Lost(key, "the scheduler was shut down", released=True))
            await self._drained(self._settings.force_sec)

    async def _cancel_all(self) -> None:
        log.info("%d rollouts still run; they are cancelled", len(self._attempts))
        ids = tuple(attempt.rollout_id for attempt in self._attempts.values())
        await self._ledger.submit(cmd.Cancel(requested_by="shutdown", ids=ids))
        for key in list(self._attempts):
            self._cancel(key)
        if not await self._drained(self._settings.clean_up_sec):
            log.error("%d rollouts ignore their cancellation; their runners are killed", len(self._attempts))
            await self._pool.kill()
            for key in list(self._attempts):
                self.lost(Lost(key, "it ignored its cancellation when the scheduler was shut down"))
            await self._drained(self._settings.force_sec)


class _Limits(msgspec.Struct, frozen=True):
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None


def _without_payload(command: cmd.FinishAttempt, reason: str) -> cmd.FinishAttempt:
    """A result that the ledger cannot take still ends its rollout, as what it is: a failure of ours."""
    return cmd.FinishAttempt(
        rollout_id=command.rollout_id,
        attempt=command.attempt,
        scheduler=command.scheduler,
        status="failure",
        err_message=f"the result could not be recorded: {reason}",
        err_category="internal_error",
        spans=command.spans,
    )


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)
