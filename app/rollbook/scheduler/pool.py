"""The runner processes of a scheduler: kept alive, watched, replaced when they are blocked or die."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from rollbook.ledger.clock import host_clock_us
from rollbook_client.events import Phase, StageSpan

from .child import Child, ChildEvents, Running
from .leftovers import Leftovers
from .loops import FIRST_BACKOFF_SEC, LONGEST_BACKOFF_SEC, Loop
from .runners import Lost, Reports
from .wire import Assignment, Finished, Recorded

log = logging.getLogger(__name__)

WATCH_INTERVAL_SEC = 0.5
GRACE_SEC = 2.0
"""How long a deadline or a cancellation may pass before a blocked runner is taken for unable to obey it."""
KILL_SHUTDOWN_SEC = 5.0
LEFTOVERS_SEC = 10.0
"""How long a stop waits for the removal of what killed runners left."""


class PoolSettings(msgspec.Struct, frozen=True):
    """How many runners, and when they are given up."""

    entrypoint: str
    runners: int = 1
    max_concurrent: int | None = None
    memory_bytes: int | None = None
    record_model_calls: bool = True
    stall_after_sec: float = 10.0
    clean_up_sec: float = 120.0


class Condemned(msgspec.Struct, frozen=True):
    """An execution for whose sake its runner is killed, and how it ends."""

    key: int
    report: Finished


class ChildPool:
    """N runner processes over one entrypoint."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._children: list[Child] = []
        self._condemned: dict[Child, Condemned] = {}
        self._reports: Reports | None = None
        self._leftovers = Leftovers()
        self._closing: dict[Child, asyncio.Task[None]] = {}
        self._spawn_after = 0.0
        self._watch = Loop("runner-watch", self._watch_once, interval_sec=WATCH_INTERVAL_SEC)
        self._backoff = FIRST_BACKOFF_SEC
        self._ever_ready = False
        self._stopping = False
        self._trouble: str | None = None

    @property
    def capacity(self) -> int:
        """Slots of all healthy runners."""
        return sum(child.slots for child in self._children if child.is_ready and not child.retired)

    @property
    def free(self) -> int:
        """Slots that could take an execution now."""
        return sum(child.free for child in self._children)

    @property
    def ready(self) -> int:
        """Runners that have loaded the entrypoint and live, those included that take no more work."""
        return sum(child.is_ready for child in self._children)

    @property
    def trouble(self) -> str | None:
        """What is wrong with the runners; None when nothing is."""
        return self._trouble or self._watch.trouble

    async def start(self, reports: Reports) -> None:
        """Start the runners."""
        self._reports = reports
        await self._keep_up()
        self._watch.start()

    async def _keep_up(self) -> None:
        """Have as many runners that take work as there should be, unless they just died before they were ready."""
        now = asyncio.get_running_loop().time()
        while sum(not child.retired for child in self._children) < self._settings.runners:
            if self._stopping or now < self._spawn_after:
                return
            await self._spawn()

    async def _spawn(self) -> None:
        events = ChildEvents(self._ready, self._broken, self._entered, self._recorded, self._finished, self._died)
        settings = self._settings
        child = Child(
            settings.entrypoint,
            events,
            max_concurrent=settings.max_concurrent,
            memory=settings.memory_bytes,
            record_model_calls=settings.record_model_calls,
        )
        try:
            await child.start()
        except OSError:
            child.close()
            raise
        self._children.append(child)

    def run(self, assignment: Assignment) -> None:
        """Hand an execution to the runner with the most free slots."""
        max(self._children, key=lambda child: child.free).run(assignment)

    def cancel(self, key: int) -> None:
        """Request an execution's end."""
        for child in self._children:
            if key in child.running:
                child.cancel(key)

    async def kill(self) -> None:
        """End all executions at once; nothing more is reported of them, and no runner is started again."""
        self._stopping = True
        for child in self._children:
            child.running.clear()
        await asyncio.gather(*(child.kill() for child in self._children))

    async def stop(self, timeout_sec: float) -> None:
        """Let the backends shut down, then end the runners."""
        self._stopping = True
        await self._watch.stop()
        await asyncio.gather(*(child.shut_down(timeout_sec) for child in self._children), *self._closing.values())
        await self._leftovers.settle(LEFTOVERS_SEC)

    # What children report

    def _ready(self, child: Child) -> None:
        self._ever_ready = True
        self._backoff = FIRST_BACKOFF_SEC
        self._trouble = None
        self._tell().slots_changed()

    def _broken(self, reason: str) -> None:
        self._trouble = reason
        if not self._ever_ready:
            self._tell().broken(reason)

    def _entered(self, key: int, phase: Phase) -> None:
        self._tell().entered(key, phase)

    def _recorded(self, message: Recorded) -> None:
        self._tell().recorded(message)

    def _finished(self, report: Finished) -> None:
        self._tell().finished(report)
        self._tell().slots_changed()

    def _tell(self) -> Reports:
        assert self._reports is not None
        return self._reports

    def _died(self, child: Child) -> None:
        self._children.remove(child)
        self._closing.pop(child, None)
        condemned = self._condemned.pop(child, None)
        if not self._stopping and condemned is None and not child.broken and child.running:
            log.error("runner %s %s", child.pid, child.death())
        for ended in verdicts(child, condemned):
            if isinstance(ended, Lost):
                self._tell().lost(ended)
            else:
                self._tell().finished(ended)
        child.running.clear()
        child.close()
        if child.slots and not child.tidied_up:
            self._leftovers.look()
        if child.slots == 0:
            # It never became ready: the next one is likely to end the same way.
            if not child.broken:
                self._trouble = f"a runner {child.death()} before it was ready"
            self._spawn_after = asyncio.get_running_loop().time() + self._backoff
            self._backoff = min(self._backoff * 2, LONGEST_BACKOFF_SEC)
        self._tell().slots_changed()
        self._watch.wake()

    # Watching

    async def _watch_once(self) -> None:
        now = time.monotonic()
        for child in list(self._children):
            if child in self._condemned or not child.is_ready:
                continue
            stalled_sec = child.stalled_sec()
            if stalled_sec > 0:
                child.tell_what_blocks()
            condemned = condemn(child, stalled_sec, now, clean_up_sec=self._settings.clean_up_sec)
            if condemned is not None:
                why = condemned.report.err_message or "a cancelled rollout does not end"
                log.warning("runner %s is killed: %s", child.pid, why)
                self._condemned[child] = condemned
                await child.kill()
            elif stalled_sec >= self._settings.stall_after_sec and not child.retired:
                self._retire(child)
            elif child.retired and not child.running and child not in self._closing:
                shut_down = child.shut_down(KILL_SHUTDOWN_SEC)
                self._closing[child] = asyncio.get_running_loop().create_task(shut_down)
        await self._keep_up()

    def _retire(self, child: Child) -> None:
        """A blocked runner keeps the execution that blocks it; the others go on elsewhere."""
        log.warning("runner %s is blocked in %s; another one takes over", child.pid, child.blocked_in() or "its code")
        child.retired = True
        culprit = child.culprit
        reason = "its runner was blocked by another rollout's code, so it was given back"
        for key in [key for key in child.running if key != culprit]:
            child.cancel(key)
            del child.running[key]
            self._tell().lost(Lost(key, reason, released=True))


def condemn(child: Child, stalled_sec: float, now: float, *, clean_up_sec: float) -> Condemned | None:
    """The execution, if any, for which a runner must be killed; ``now`` is on the monotonic clock.

    One that is past the deadline of its stage, or cancelled, and cannot obey: because its code blocks the runner (for
    two seconds), or because it ignores its cancellation for longer than any clean-up may take.
    """
    culprit = child.culprit
    for key, running in child.running.items():
        ends_at = running.stage.ends_at
        overdue_sec = -1.0 if ends_at is None else now - ends_at
        cancelled_sec = -1.0 if running.cancelled_at is None else now - running.cancelled_at
        late_sec = max(overdue_sec, cancelled_sec)
        blocks = stalled_sec > GRACE_SEC and (key == culprit or culprit not in child.running)
        if late_sec > clean_up_sec or (blocks and late_sec > GRACE_SEC):
            where = child.blocked_in() if blocks else None
            return Condemned(key, _ending(running, cancelled=running.cancelled_at is not None, where=where))
    return None


def _ending(running: Running, *, cancelled: bool, where: str | None) -> Finished:
    key, stage = running.assignment.key, running.stage
    ended_at = max(host_clock_us(), stage.began_at)
    spans = (StageSpan(stage.name, stage.began_at, ended_at),) if stage.name else ()
    if cancelled:
        return Finished(key=key, status="cancelled", spans=spans)
    how = "did not end when it was cancelled"
    if where is not None:
        how = "blocked its runner's event loop" + (f" in {where}" if where else "")
    message = (
        f"{stage.late}: it {how}, so the runner process was killed; "
        "run blocking code in a thread or a subprocess (asyncio.to_thread, asyncio.create_subprocess_exec)"
    )
    return Finished(key=key, status="failure", err_message=message, err_category="timeout", spans=spans)


def verdicts(child: Child, condemned: Condemned | None) -> list[Finished | Lost]:
    """What becomes of a dead runner's executions.

    Where it is known whose code killed the runner, only that one's attempt counts; the others were bystanders.
    """
    culprit = condemned.key if condemned is not None else child.culprit
    death = f"its runner process {child.death()}"
    ended: list[Finished | Lost] = []
    for key in child.running:
        if condemned is not None and key == culprit:
            ended.append(condemned.report)
        elif condemned is not None:
            ended.append(Lost(key, "its runner was stopped: another rollout's code overstayed in it", released=True))
        elif culprit in child.running and key != culprit:
            ended.append(Lost(key, f"{death} because of another rollout's code", released=True))
        elif key == culprit:
            ended.append(Lost(key, f"{death} while it ran this rollout's code"))
        else:
            ended.append(Lost(key, death))
    return ended
