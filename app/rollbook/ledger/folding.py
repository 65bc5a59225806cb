"""The fold over the whole ledger: rollout by rollout, some thousand events at a time, in constant memory.

Events are streamed in the order of each rollout's history. That is the order of the history tables' keys too, and of
the stubs that stand for archived events, so whatever is compared with them is one pass over parallel streams.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec

from rollbook_projections import HistoryRows, Recorded, RolloutState, Row, add_history, evolve

from . import codec
from .archives.stubs import STUB_COLUMNS, Stub, stub_of
from .database import Snapshot
from .refusals import LedgerUnavailable
from .transaction import Head, QueueCount

CHUNK_EVENTS = 1_000
PAGE_EVENTS = 250
"""Payloads may be large, and so many of them lie in memory."""
NO_MORE = 2**63
"""A number after all rollouts."""

_EVENT_COLUMNS = ("position", "number", "seq", "type", "version", "recorded_at", "payload", "hash")
_ARCHIVED = (
    "SELECT r.status, count(*) FROM archived_rollouts s JOIN rollouts r ON r.number = s.number GROUP BY r.status"
)


class Replay(msgspec.Struct, frozen=True):
    """What the events add up to: where the ledger ends, its queues, and its rollouts by status.

    ``archived`` counts the rollouts among them whose events are in archives: they are taken by their rows and stubs.
    """

    head: Head
    queues: dict[str, QueueCount]
    statuses: dict[str, int]
    archived: int = 0


class Chunk(msgspec.Struct):
    """Whole rollouts, replayed: those numbered up to ``last``. ``errors`` says of numbers where their fold stopped;
    ``stubs`` are those whose events are archived."""

    states: list[RolloutState]
    history: HistoryRows
    errors: dict[int, str]
    stubs: dict[int, Stub]
    last: int = 0
    events: int = 0
    position: int = 0

    @property
    def full(self) -> bool:
        """Whether it is as large as chunks become, but for one long history."""
        return self.events + len(self.stubs) >= CHUNK_EVENTS

    def stand_for(self, stub: Stub) -> None:
        """Take an archived rollout in."""
        self.stubs[stub.number] = stub
        self.last = stub.number
        self.position = max(self.position, stub.last_position)


def fold(snapshot: Snapshot) -> Iterator[Chunk]:
    """Every rollout's events folded, in the order of their numbers."""
    decode = codec.decode
    stubs = _Stubs(snapshot)
    chunk = _empty()
    number = 0
    state: RolloutState | None = None
    for position, owner, seq, kind, version, recorded_at, payload, digest in _events(snapshot):
        if owner != number:
            if state is not None:
                chunk.states.append(state)
                state = None
            while stubs.number < owner:
                if chunk.full:
                    yield chunk
                    chunk = _empty()
                chunk.stand_for(stubs.take())
            if chunk.full:
                yield chunk
                chunk = _empty()
            chunk.last = number = owner
            if stubs.number == owner:
                stubs.take()
                chunk.errors[number] = f"rollout number {number}, seq {seq}, position {position}: it is archived"
        chunk.events += 1
        if position > chunk.position:
            chunk.position = position
        if number in chunk.errors:
            continue
        try:
            record = Recorded(position, number, seq, recorded_at, digest, decode(kind, version, payload))
            state = evolve(state, record)
            add_history(record, chunk.history)
        except Exception as error:
            # Whatever a damaged event raises: it is named, and the other rollouts are still compared.
            what = str(error) or type(error).__name__
            chunk.errors[number] = f"rollout number {number}, seq {seq}, position {position}: {what}"
            state = None
    if state is not None:
        chunk.states.append(state)
    while stubs.number < NO_MORE:
        if chunk.full:
            yield chunk
            chunk = _empty()
        chunk.stand_for(stubs.take())
    if chunk.last:
        yield chunk


class Totals:
    """Counts over all rollouts."""

    def __init__(self) -> None:
        self._head = Head(0, 0, 0)
        self._queues: dict[str, QueueCount] = {}
        self._statuses: Counter[str] = Counter()
        self._archived = 0

    def add(self, chunk: Chunk) -> None:
        """Take some rollouts in."""
        head = self._head
        head.events += chunk.events + sum(stub.seq for stub in chunk.stubs.values())
        head.number = chunk.last
        head.position = max(head.position, chunk.position)
        self._archived += len(chunk.stubs)
        for state in chunk.states:
            self._statuses[state.status] += 1
            count = self._queues.get(state.queue)
            if count is None:
                count = self._queues[state.queue] = QueueCount()
            count.queued += state.claimable
            count.running += state.scheduler is not None

    def result(self, snapshot: Snapshot) -> Replay:
        """All of it; archived rollouts stand as their rows say."""
        statuses = Counter(self._statuses)
        if self._archived:
            statuses.update(dict(snapshot.rows(_ARCHIVED)))
        return Replay(self._head, self._queues, dict(statuses), self._archived)


class _Stubs:
    """The stubs, in the order of their rollouts' numbers; ``number`` is the next one's."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._stream = snapshot.stream("archived_rollouts", STUB_COLUMNS, ("number",))
        self._ahead: Iterator[Row] = iter(())
        self.number = 0
        self._next: Stub | None = None
        self._advance()

    def take(self) -> Stub:
        """The next one."""
        stub = self._next
        assert stub is not None
        self._advance()
        return stub

    def _advance(self) -> None:
        row = next(self._ahead, None)
        if row is None:
            self._ahead = iter(self._stream.fetch(CHUNK_EVENTS))
            row = next(self._ahead, None)
        if row is None:
            self.number, self._next = NO_MORE, None
            return
        stub = stub_of(row)
        if stub is None:
            raise LedgerUnavailable(
                f"what stands for the events of rollout number {row[0]} is damaged; look with `rollbook audit verify`"
            )
        self.number, self._next = stub.number, stub


def _empty() -> Chunk:
    return Chunk([], defaultdict(list), {}, {})


def _events(snapshot: Snapshot) -> Iterator[Row]:
    """All events, rollout by rollout."""
    stream = snapshot.stream("events", _EVENT_COLUMNS, ("number", "seq"))
    while rows := stream.fetch(PAGE_EVENTS):
        yield from rows
