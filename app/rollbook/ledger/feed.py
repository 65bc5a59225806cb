"""Who wakes whom. Notifications are hints, the ledger is the truth.

A hint (a commit of this process, a word from another one) makes the feed read what came after its
last position and tell its listeners; without any hint it looks once a second. Waiters of one rollout are woken by
any change but a lease renewal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from rollbook_projections import RolloutState

from .batch import Committed
from .database import Hints
from .reader import Reader
from .refusals import LedgerUnavailable
from .transaction import QUIET_EVENTS

log = logging.getLogger(__name__)

BACKSTOP_SEC = 1.0
READ_LIMIT = 2_000

Listener = Callable[[dict[int, RolloutState]], None]


class Watch:
    """The latest that was told about one rollout while it is watched."""

    __slots__ = ("_latest", "_released", "_seq", "_status", "_waiter")

    def __init__(self) -> None:
        self._latest: RolloutState | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._status = ""
        self._seq = 0
        self._released = False

    def offer(self, state: RolloutState) -> None:
        """Take in a change."""
        if self._latest is None or state.seq > self._latest.seq:
            self._latest = state
        # What is told can be older than what the waiter knows: read before its renewal, told after it.
        if (
            self._waiter is not None
            and not self._waiter.done()
            and state.seq > self._seq
            and state.status != self._status
        ):
            self._waiter.set_result(None)

    def release(self) -> None:
        """End the wait, this one and any later one."""
        self._released = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def change(self, state: RolloutState, timeout_sec: float) -> RolloutState:
        """The state once its status differs from ``state``'s, else the latest when ``timeout_sec`` is over."""
        if not self._moved(state) and not self._released:
            loop = asyncio.get_running_loop()
            self._status, self._seq = state.status, state.seq
            self._waiter = waiter = loop.create_future()
            timer = loop.call_later(timeout_sec, self._time_over, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._latest if self._latest is not None and self._latest.seq > state.seq else state

    def _moved(self, state: RolloutState) -> bool:
        return self._latest is not None and self._latest.seq > state.seq and self._latest.status != state.status

    @staticmethod
    def _time_over(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)


class Feed:
    """One per process, on one event loop."""

    def __init__(self, reader: Reader, hints: Hints) -> None:
        self._reader = reader
        self._hints = hints
        self._position = 0
        self._listeners: list[Listener] = []
        self._watches: dict[str, set[Watch]] = {}
        self._hinted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.trouble: str | None = None

    @property
    def position(self) -> int:
        """Everything up to here has been told."""
        return self._position

    @property
    def watched(self) -> int:
        """How many watches there are now."""
        return sum(map(len, self._watches.values()))

    async def start(self) -> None:
        """Follow the ledger from its present end.

        Raises:
            LedgerUnavailable: the ledger cannot be read.
        """
        self._position = await self._reader.last_position()
        await self._hints.start(self._hinted.set)
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="ledger-feed")

    async def close(self) -> None:
        """Stop following and end every wait."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            await self._hints.close()
        self.release_waiters()

    def release_waiters(self) -> None:
        """End every wait now, as if its time were over: the process shuts down."""
        for watches in self._watches.values():
            for watch in watches:
                watch.release()

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with the states of rollouts that changed; it must not block."""
        self._listeners.append(listener)

    def committed(self, batch: Committed) -> None:
        """A batch of this process landed: tell its changes, and the other processes that there are some."""
        if batch.wakes:
            self._hints.tell()
        if batch.first_position == self._position + 1:
            self._position = batch.last_position
            if batch.wakes:
                self._tell(batch.changed)
        elif batch.wakes:
            self._hinted.set()

    @contextlib.contextmanager
    def watch(self, rollout_id: str) -> Iterator[Watch]:
        """Gather a rollout's changes from now on; begin before the renewal, so that none is missed."""
        watch = Watch()
        watches = self._watches.setdefault(rollout_id, set())
        watches.add(watch)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches and self._watches.get(rollout_id) is watches:
                del self._watches[rollout_id]

    async def _follow(self) -> None:
        idle = 0.0
        while True:
            pause = min(self._hints.pause_sec, BACKSTOP_SEC)
            try:
                async with asyncio.timeout(pause):
                    await self._hinted.wait()
                hinted = True
            except TimeoutError:
                hinted = False
            self._hinted.clear()
            idle += pause
            try:
                if hinted or idle >= BACKSTOP_SEC or await self._hints.changed():
                    if not hinted and idle >= BACKSTOP_SEC:
                        await self._look_back()
                    idle = 0.0
                    await self._catch_up()
                self.trouble = None
            except Exception as error:
                # Whatever it is, following goes on, and the next turn looks again, hint or not.
                idle = BACKSTOP_SEC
                if self.trouble is None:
                    unforeseen = not isinstance(error, LedgerUnavailable)
                    log.warning("the feed cannot follow the ledger and tries again: %s", error, exc_info=unforeseen)
                self.trouble = str(error) or type(error).__name__

    async def _look_back(self) -> None:
        """Follow a database that was set back: a standby that took over had not got the last commits."""
        told = self._position
        last = await self._reader.last_position()
        if last < told == self._position:
            log.warning("the ledger ends at %d, before what was told last (%d): it was set back", last, told)
            # Where the two histories part is not known, so everybody who waits is told how things stand.
            states = await self._reader.states_of(list(self._watches))
            self._position = last
            self._tell({state.number: state for state in states})

    async def _catch_up(self) -> None:
        complete = False
        while not complete:
            news = await self._reader.news_after(self._position, READ_LIMIT)
            # A short page is the end: of what was committed since, there is another hint.
            complete = len(news) < READ_LIMIT
            numbers = dict.fromkeys(event.number for event in news if event.type not in QUIET_EVENTS)
            changed = {event.number: event.state for event in news if event.state and event.number in numbers}
            if len(changed) < len(numbers):  # some have later events, beyond this page
                rest = [number for number in numbers if number not in changed]
                changed |= {state.number: state for state in await self._reader.states(rest)}
            if not news or news[-1].position <= self._position:
                continue  # commits of this process told all of it while it was read
            self._position = news[-1].position  # only now: a read that fails must be repeated
            if changed:
                self._tell(changed)

    def _tell(self, changed: dict[int, RolloutState]) -> None:
        for state in changed.values():
            for watch in self._watches.get(state.rollout_id, ()):
                watch.offer(state)
        for listener in self._listeners:
            try:
                listener(changed)
            except Exception:
                log.exception("a listener of the feed failed")
