"""The scheduler: claims work for free slots, hands it to runners and records what they report.

Every command of an attempt carries (attempt, scheduler) and is refused once it is no longer the current one, so
whatever this process believes, a superseded attempt's result does not land.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rollbook.ledger import commands as cmd
from rollbook.ledger.clock import clock_trouble
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.reader import Work
from rollbook.ledger.refusals import LedgerUnavailable, SchedulerGone
from rollbook.ledger.secrets import SecretKeyError
from rollbook.settings import SchedulerSettings
from rollbook_client.events import Phase
from rollbook_projections import RolloutState

from .attempts import Attempt, Attempts
from .loops import Loop
from .member import SchedulerMember
from .preparing import prepared
from .recording import Recorder
from .records import RecordError, shifted, shifted_spans, unpacked
from .runners import Lost, RunnerPool
from .shares import Shares
from .sweeps import Sweeper
from .wire import Finished, Recorded

log = logging.getLogger(__name__)

CLAIM_LIMIT = 256
BACKSTOP_SEC = 1.0
LONGEST_BEAT_BACKOFF_SEC = 1.0
"""After an outage all must beat again before anybody may declare others dead; see `SchedulerMember`."""
LAST_CHANCE_SEC = 2.0
"""A beat that is sent when it is late already (this process stood still) may still find that nothing happened."""


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
        self._claimed = 0
        self._left_waiting = False
        """Whether something may wait that was not claimed. Else a slot that becomes free is no reason to look."""
        self._releasing = False
        self._told_capacity = 0
        self._member = SchedulerMember(ledger, settings)
        self._shares = Shares(lambda: self._claims.wake())
        self._claims = Loop("claims", self._claim_once, interval_sec=BACKSTOP_SEC)
        self._beats = Loop(
            "beats",
            self._beat_once,
            interval_sec=settings.beat_interval_sec,
            longest_backoff_sec=LONGEST_BEAT_BACKOFF_SEC,
        )
        dead_after_us = int(settings.dead_after_sec * MICROSECONDS)
        self._sweeper = Sweeper(ledger, self._member, dead_after_us=dead_after_us)
        self._sweeps = Loop("sweeps", self._sweeper.run_once, interval_sec=settings.sweep_interval_sec)

    @property
    def member_id(self) -> str:
        """By which the ledger knows it; another one after it was declared dead."""
        return self._member.member_id

    # Metrics are read by a thread of their own: nothing here may need the event loop.

    @property
    def running(self) -> int:
        """Attempts that are not over yet."""
        return self._attempts.running

    @property
    def claimed(self) -> int:
        """Attempts that it began so far."""
        return self._claimed

    @property
    def contact_age_sec(self) -> float:
        """How long ago the last accepted beat was sent, or this was made."""
        return self._member.silent_sec

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
        await self._member.register(capacity=self._pool.capacity)
        self._ledger.feed.listen(self._told)
        await self._pool.start(self)
        for loop in self.loops:
            loop.start()

    # Claims

    async def _claim_once(self) -> None:
        while self._claiming:
            free = self._pool.free
            limit = min(free, CLAIM_LIMIT)
            self._left_waiting = limit <= 0
            if limit <= 0:
                self._shares.settled()
                return
            counts = await self._ledger.reader.counts()
            waiting = sum(counts[queue].queued for queue in self._settings.queues if queue in counts)
            if waiting <= 0:
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
                self._claimed += len(claimed)
                await self._dispatch(claimed)
            except SchedulerGone:
                self._beats.wake()
                return
            finally:
                self._claim_under_way = False
            if len(claimed) >= min(limit, waiting):
                self._shares.settled()
                if len(claimed) < limit:
                    return  # all that waited; the feed tells of what came meanwhile
            elif claimed or waiting <= limit:
                # Others have slots for it, or had it meanwhile.
                self._left_waiting = True
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
            assignment = prepared(attempt, work, self._ledger.keys)
        except Exception as error:
            if not isinstance(error, SecretKeyError):
                log.exception("rollout %s cannot be handed to a runner", attempt.rollout_id, extra=attempt.about)
            reason = f"the rollout could not be handed to a runner: {error}"
            self.finished(Finished(attempt.key, "failure", err_message=reason, err_category="internal_error"))
            return
        self._pool.run(assignment)

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
        if self._left_waiting:
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

    def recorded(self, message: Recorded) -> None:
        """An execution records something of itself."""
        attempt = self._attempts.get(message.key)
        if attempt is None:
            return
        skew = self._ledger.skew_us()
        events = []
        for record in message.records:
            try:
                events.append(shifted(unpacked(record), skew))
            except RecordError as error:
                log.error("rollout %s: a record is lost: %s", attempt.rollout_id, error, extra=attempt.about)
        self._recorder.note(
            cmd.Record(attempt.rollout_id, attempt.attempt, attempt.scheduler, tuple(events)), key=message.key
        )

    def finished(self, report: Finished) -> None:
        """An execution is over: record how."""
        attempt = self._attempts.get(report.key)
        if attempt is None:
            return
        if report.status == "cancelled" and self._releasing:
            self.lost(Lost(report.key, "the scheduler was shut down", released=True))
            return
        rewards = () if report.reward is None else (cmd.Score("reward", report.reward),)
        self._attempts.report(attempt)
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
                spans=(attempt.queued, *shifted_spans(report.spans, self._ledger.skew_us())),
                rewards=rewards,
                metrics=tuple(cmd.Score(name, value) for name, value in report.metrics.items()),
            ),
            ends=report.key,
        )

    def lost(self, loss: Lost) -> None:
        """An execution is gone: give its rollout back."""
        attempt = self._attempts.get(loss.key)
        if attempt is not None:
            self._attempts.report(attempt)
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
        # A ledger may also hang without a word, and others do not wait for the answer before they take over.
        beating = asyncio.create_task(self._beat_and_compare(), name="beat")
        while not beating.done():
            patience_sec = self._settings.beat_lost_after_sec - self._member.silent_sec
            await asyncio.wait({beating}, timeout=patience_sec if patience_sec > 0 else LAST_CHANCE_SEC)
            if not beating.done():
                self._stop_if_unheard()
        try:
            await beating
        except LedgerUnavailable:
            self._stop_if_unheard()
            raise

    async def _beat_and_compare(self) -> None:
        self._told_capacity = self._pool.capacity
        try:
            await self._member.beat(
                accepting=self._claiming,
                capacity=self._told_capacity,
                free=self._pool.free,
                trouble=self._trouble(),
            )
        except SchedulerGone:
            log.error("this scheduler was declared dead; it stops its attempts and registers anew")
            await self._start_anew()
        else:
            if self._member.silent_sec > self._settings.beat_interval_sec:
                self._beats.wake()  # it took so long that the next one is due
            await self._reconcile()

    def _stop_if_unheard(self) -> None:
        silent_sec = self._member.silent_sec
        if silent_sec >= self._settings.beat_lost_after_sec and self._attempts.unreported():
            log.error("no beat was accepted for %.0f s; the attempts are stopped", silent_sec)
            self._stop_attempts()

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
        self._stop_attempts()
        await self._member.register_anew(capacity=self._pool.capacity)
        self._claims.wake()

    def _stop_attempts(self) -> None:
        """Others may have our rollouts by now: end the executions, and drop what they would still report."""
        for attempt in self._attempts.unreported():
            self._pool.cancel(attempt.key)
            self._attempts.forget(attempt.key)
            self._recorder.forget(attempt.key)

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
        if not await _within(settings.drain_sec, self._attempts.idle) and self._attempts.unreported():
            if settings.on_shutdown == "release":
                await self._release()
            else:
                await self._cancel_all()
        await self._sweeps.stop()
        await self._pool.stop(settings.clean_up_sec)
        await self._recorder.settle(settings.force_sec)
        await self._beats.stop()
        try:
            await self._member.leave()
        except LedgerUnavailable as error:
            log.warning("this scheduler could not say that it leaves; its attempts are taken over later: %s", error)

    # From here on executions are waited for; how long their reports may take is the recorder's affair.

    async def _release(self) -> None:
        running = self._attempts.unreported()
        log.info("%d rollouts still run; they go back to their queue", len(running))
        self._releasing = True
        for attempt in running:
            self._pool.cancel(attempt.key)
        if not await _within(self._settings.force_sec, self._attempts.all_reported):
            await self._pool.kill()
            for attempt in self._attempts.unreported():
                self.lost(Lost(attempt.key, "the scheduler was shut down", released=True))

    async def _cancel_all(self) -> None:
        running = self._attempts.unreported()
        log.info("%d rollouts still run; they are cancelled", len(running))
        ids = tuple(attempt.rollout_id for attempt in running)
        try:
            await self._ledger.submit(cmd.Cancel(requested_by="shutdown", ids=ids))
        except LedgerUnavailable as error:
            log.warning("the cancellation cannot be recorded, so they go back to their queue: %s", error)
            self._releasing = True
        for attempt in self._attempts.unreported():
            self._cancel(attempt)
        if not await _within(self._settings.clean_up_sec, self._attempts.all_reported):
            stubborn = self._attempts.unreported()
            log.error("%d rollouts ignore their cancellation; their runners are killed", len(stubborn))
            await self._pool.kill()
            for attempt in self._attempts.unreported():
                reason = "it ignored its cancellation when the scheduler was shut down"
                self.lost(Lost(attempt.key, reason, released=self._releasing))


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Whether it came in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _is_wanted(attempt: Attempt, state: RolloutState) -> bool:
    """Whether anybody waits for what the attempt would bring, as far as a state of its rollout tells."""
    if state.attempt < attempt.attempt:
        return True  # read before our claim
    ours = state.attempt == attempt.attempt and state.scheduler == attempt.scheduler
    return ours and state.cancel_requested_at is None and not state.terminal
