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

from rollbook.ledger import codec
from rollbook.ledger import commands as cmd
from rollbook.ledger.clock import clock_trouble
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.liveness import host_name, joined, known_dead, left
from rollbook.ledger.reader import Work
from rollbook.ledger.refusals import LedgerUnavailable, SchedulerGone
from rollbook.ledger.secrets import SecretKeyError
from rollbook.settings import SchedulerSettings
from rollbook_client.events import Phase, StageSpan
from rollbook_projections import RolloutState

from .attempts import Attempt, Attempts
from .loops import Loop
from .recording import Recorder
from .runners import Deadline, Lost, RunnerPool
from .shares import Shares
from .sweeps import Sweeper
from .wire import Assignment, Finished

log = logging.getLogger(__name__)

CLAIM_LIMIT = 256
BACKSTOP_SEC = 1.0


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
        self._attempts = Attempts()
        self._recorder = Recorder(ledger, self._attempts.forget)
        self._claiming = True
        self._claim_under_way = False
        self._claims_made = 0
        self._releasing = False
        self._beaten_at = 0.0
        self._told_capacity = 0
        self.member_id = uuid4().hex
        self._shares = Shares(lambda: self._claims.wake())
        self._claims = Loop("claims", self._claim_once, interval_sec=BACKSTOP_SEC)
        self._beats = Loop("beats", self._beat_once, interval_sec=settings.beat_interval_sec)
        self._sweeper = Sweeper(ledger, dead_after_us=_us(settings.dead_after_sec), member_id=lambda: self.member_id)
        self._sweeps = Loop("sweeps", self._sweeper.run_once, interval_sec=settings.sweep_interval_sec)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The background loops, for health."""
        return (self._claims, self._beats, self._sweeps)

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
                known_dead=await known_dead(self._ledger.reader, "scheduler"),
            )
        )
        self._beaten_at = asyncio.get_running_loop().time()

    # Claims

    async def _claim_once(self) -> None:
        while self._claiming:
            free = self._pool.free
            limit = min(free, CLAIM_LIMIT)
            counts = await self._ledger.reader.counts()
            waiting = sum(counts[queue].queued for queue in self._settings.queues if queue in counts)
            if limit <= 0 or waiting <= 0:
                self._shares.settled()
                return
            self._claim_under_way = True
            self._claims_made += 1
            try:
                claimed = await self._ledger.submit(
                    cmd.Claim(
                        scheduler=self.member_id,
                        queues=self._settings.queues,
                        limit=limit,
                        free=free if self._shares.fair else None,
                    )
                )
                await self._dispatch(claimed)
            except SchedulerGone:
                self._beats.wake()
                return
            finally:
                self._claim_under_way = False
            if len(claimed) >= min(limit, waiting):
                self._shares.settled()
            elif claimed or waiting <= limit:
                # Others have slots for it, or had it meanwhile.
                self._shares.short()
                return

    async def _dispatch(self, claimed: tuple[RolloutState, ...]) -> None:
        # Owned before anything is waited for: what the feed tells of them meanwhile must find them.
        now = self._ledger.clock()
        attempts = [self._attempts.own(state, now_us=now) for state in claimed]
        try:
            works = {work.state.number: work for work in await self._ledger.reader.work(claimed)}
        except LedgerUnavailable as error:
            for attempt in attempts:
                self.lost(Lost(attempt.key, f"its request could not be read: {error}", released=True))
            raise
        for attempt in attempts:
            work = works.get(attempt.number)
            if self._attempts.get(attempt.key) is None:
                continue  # this scheduler was declared dead meanwhile: the rollout is another one's
            if work is None:
                self.lost(Lost(attempt.key, "its secrets were gone when the attempt started"))
            elif self._pool.free <= 0:
                # A runner died or was given up since the claim was sent.
                self.lost(Lost(attempt.key, "no runner had a slot for it any more", released=True))
            elif attempt.cancelled or not _is_wanted(attempt, work.state):
                self.finished(Finished(attempt.key, "cancelled"))
            else:
                self._start(attempt, work)

    def _start(self, attempt: Attempt, work: Work) -> None:
        try:
            assignment, deadline = self._prepared(attempt, work)
        except Exception as error:
            if not isinstance(error, SecretKeyError):
                log.exception("rollout %s cannot be handed to a runner", attempt.rollout_id, extra=attempt.about)
            reason = f"the rollout could not be handed to a runner: {error}"
            self.finished(Finished(attempt.key, "failure", err_message=reason, err_category="internal_error"))
            return
        self._pool.run(assignment, deadline)

    def _prepared(self, attempt: Attempt, work: Work) -> tuple[Assignment, Deadline]:
        request = bytes(work.request.request)
        secrets = self._ledger.keys.open(work.sealed, attempt.rollout_id)
        queued_sec = (attempt.queued.ended_at - attempt.queued.started_at) / MICROSECONDS
        limits = _limits(request)
        agent = limits.agent_timeout_sec
        deadline = Deadline(
            agent_sec=agent,
            agent_left_sec=None if agent is None else agent - queued_sec,
            grader_sec=limits.grader_timeout_sec,
        )
        assignment = Assignment(
            key=attempt.key,
            rollout_id=attempt.rollout_id,
            request=request,
            chat_completions_url=secrets.chat_completions_url,
            llm_api_key=secrets.llm_api_key,
            queued_sec=queued_sec,
            attempt=attempt.attempt,
            scheduler=attempt.scheduler,
        )
        return assignment, deadline

    # What the ledger's feed tells

    def _told(self, changed: dict[int, RolloutState]) -> None:
        queues = self._settings.queues
        for number, state in changed.items():
            attempt = self._attempts.of(number)
            if attempt is not None:
                self._judge(attempt, state)
            if state.claimable and state.queue in queues:
                self._claims.wake()

    def _judge(self, attempt: Attempt, state: RolloutState) -> None:
        if not _is_wanted(attempt, state):
            self._cancel(attempt)

    def _cancel(self, attempt: Attempt) -> None:
        if not attempt.cancelled:
            attempt.cancelled = True
            self._pool.cancel(attempt.key)

    # What runners report

    def slots_changed(self) -> None:
        """Slots became free or went away."""
        self._claims.wake()
        if self._pool.capacity != self._told_capacity:
            self._beats.wake()  # health shows the capacity of the last beat

    def broken(self, reason: str) -> None:
        """The entrypoint cannot be loaded."""
        self._on_broken(reason)

    def entered(self, key: int, phase: Phase) -> None:
        """An execution entered a phase."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._recorder.record(cmd.EnterPhase(attempt.rollout_id, attempt.attempt, attempt.scheduler, phase))

    def finished(self, report: Finished) -> None:
        """An execution is over: record how."""
        attempt = self._attempts.get(report.key)
        if attempt is None:
            return
        if report.status == "cancelled" and self._releasing:
            self.lost(Lost(report.key, "the scheduler was shut down", released=True))
            return
        rewards = () if report.reward is None else (cmd.Score("reward", report.reward),)
        attempt.reported = True
        self._recorder.record(
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
                spans=(attempt.queued, *self._as_the_ledger_counts(report.spans)),
                rewards=rewards,
                metrics=tuple(cmd.Score(name, value) for name, value in report.metrics.items()),
            ),
            ends=report.key,
        )

    def _as_the_ledger_counts(self, spans: tuple[StageSpan, ...]) -> tuple[StageSpan, ...]:
        """A runner's spans, which are its host's time, by the clock that everything else in the ledger goes by."""
        skew = self._ledger.skew_us()
        return tuple(StageSpan(span.stage, span.started_at + skew, span.ended_at + skew) for span in spans)

    def lost(self, loss: Lost) -> None:
        """An execution is gone: give its rollout back."""
        attempt = self._attempts.get(loss.key)
        if attempt is not None:
            attempt.reported = True
            level, what = (logging.INFO, "given back") if loss.released else (logging.WARNING, "lost")
            log.log(
                level,
                "rollout %s: attempt %d is %s: %s",
                attempt.rollout_id,
                attempt.attempt,
                what,
                loss.reason,
                extra=attempt.about,
            )
            self._recorder.record(
                cmd.CloseAttempt(
                    rollout_id=attempt.rollout_id,
                    attempt=attempt.attempt,
                    scheduler=attempt.scheduler,
                    outcome="released" if loss.released else "lost",
                    reason=loss.reason,
                ),
                ends=loss.key,
            )

    # Beats

    async def _beat_once(self) -> None:
        now = asyncio.get_running_loop().time()
        self._told_capacity = self._pool.capacity
        try:
            await self._ledger.submit(
                cmd.Beat(
                    member_id=self.member_id,
                    accepting=self._claiming,
                    capacity=self._told_capacity,
                    free=self._pool.free,
                    trouble=self._trouble(),
                )
            )
        except SchedulerGone:
            log.error("this scheduler was declared dead; it stops its attempts and registers anew")
            await self._start_anew()
        except LedgerUnavailable:
            if now - self._beaten_at > self._settings.beat_lost_after_sec and self._attempts.unreported():
                log.error("no beat was accepted for %.0f s; the attempts are stopped", now - self._beaten_at)
                await self._stop_attempts()
            raise
        else:
            self._beaten_at = now
            await self._reconcile()

    def _trouble(self) -> str | None:
        troubles = [f"{loop.name}: {loop.trouble}" for loop in self.loops if loop.trouble]
        if self._pool.trouble:
            troubles.append(f"runners: {self._pool.trouble}")
        if self._ledger.feed.trouble:
            troubles.append(f"feed: {self._ledger.feed.trouble}")
        if (clock := clock_trouble(self._ledger.skew_us())) is not None:
            troubles.append(clock)
        return "; ".join(troubles) or None

    async def _start_anew(self) -> None:
        await self._stop_attempts()
        left(self.member_id)
        self.member_id = uuid4().hex
        await self._register()
        self._claims.wake()

    async def _stop_attempts(self) -> None:
        """Others may have our rollouts by now: end the executions, and drop what they would still report."""
        for attempt in self._attempts.unreported():
            self._pool.cancel(attempt.key)
            self._attempts.forget(attempt.key)

    async def _reconcile(self) -> None:
        """Compare our attempts with the ledger's: what the feed tells is a hint, and a claim's answer can be lost."""
        claims, member_id = self._claims_made, self.member_id
        before = self._attempts.unreported()
        known_before = self._attempts.known()
        owned = {state.number: state for state in await self._ledger.reader.owned_by(member_id)}
        if member_id != self.member_id:
            return
        for attempt in before:
            state = owned.get(attempt.number)
            if attempt.reported:
                continue  # while the ledger was read
            if state is None:
                self._cancel(attempt)
            else:
                self._judge(attempt, state)
        if self._claim_under_way or claims != self._claims_made:
            return  # what the ledger shows as ours may just not be known here yet
        known = known_before | self._attempts.known()
        for state in owned.values():
            if (state.number, state.attempt) not in known:
                dropped = self._attempts.own(state, now_us=self._ledger.clock())
                reason = "its scheduler knew nothing of it: the claim's answer was lost, or it was stopped meanwhile"
                self.lost(Lost(dropped.key, reason, released=True))

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
        await self._recorder.settle(settings.force_sec)
        await self._beats.stop()
        left(self.member_id)
        try:
            await self._ledger.submit(cmd.Leave(self.member_id))
        except LedgerUnavailable as error:
            log.warning("this scheduler could not say that it leaves; its attempts are taken over later: %s", error)

    async def _drained(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._attempts.idle.wait()
        except TimeoutError:
            return False
        return True

    async def _release(self) -> None:
        log.info("%d rollouts still run; they go back to their queue", len(self._attempts))
        self._releasing = True
        for attempt in self._attempts.unreported():
            self._pool.cancel(attempt.key)
        if not await self._drained(self._settings.force_sec):
            await self._pool.kill()
            for attempt in self._attempts.unreported():
                self.lost(Lost(attempt.key, "the scheduler was shut down", released=True))
            await self._drained(self._settings.force_sec)

    async def _cancel_all(self) -> None:
        log.info("%d rollouts still run; they are cancelled", len(self._attempts))
        ids = tuple(attempt.rollout_id for attempt in self._attempts.unreported())
        try:
            await self._ledger.submit(cmd.Cancel(requested_by="shutdown", ids=ids))
        except LedgerUnavailable as error:
            log.warning("the cancellation cannot be recorded, so they go back to their queue: %s", error)
            self._releasing = True
        for attempt in self._attempts.unreported():
            self._cancel(attempt)
        if not await self._drained(self._settings.clean_up_sec):
            log.error("%d rollouts ignore their cancellation; their runners are killed", len(self._attempts))
            await self._pool.kill()
            for attempt in self._attempts.unreported():
                reason = "it ignored its cancellation when the scheduler was shut down"
                self.lost(Lost(attempt.key, reason, released=self._releasing))
            await self._drained(self._settings.force_sec)


def _is_wanted(attempt: Attempt, state: RolloutState) -> bool:
    """Whether anybody waits for what the attempt would bring, as far as a state of its rollout tells."""
    if state.attempt < attempt.attempt:
        return True  # read before our claim
    ours = state.attempt == attempt.attempt and state.scheduler == attempt.scheduler
    return ours and state.cancel_requested_at is None and not state.terminal


class _Limits(msgspec.Struct, frozen=True):
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None


def _limits(request: bytes) -> _Limits:
    """The deadlines of a request, whose other parts may hold what msgspec does not read (lone surrogates)."""
    try:
        return msgspec.json.decode(request, type=_Limits, strict=False)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return msgspec.convert(codec.loads(request), _Limits, strict=False)


def _us(seconds: float) -> int:
    return int(seconds * MICROSECONDS)
