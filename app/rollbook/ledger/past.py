"""The ledger as it was: one rollout, or queues and totals, folded from the events up to a moment."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from rollbook_projections import HistoryRows, Recorded, RolloutState, Row, add_history, evolve

from . import codec
from .archives.stubs import SELECT_ARCHIVED, Archived
from .database import Snapshot, database_of
from .listing import RolloutView
from .refusals import LedgerError, LedgerUnavailable, RolloutArchived, UnknownRollout
from .schema import check_database
from .statements import storable
from .transaction import QueueCount
from .urls import parse_url

PAGE_EVENTS = 250
_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_AGO = re.compile(r"-(\d+)([smhdw])")
_COLUMNS = ("position", "number", "seq", "type", "version", "recorded_at", "payload", "hash")

# An archived rollout's events are not here, but its row tells of any moment outside its life.
_ARCHIVED_THEN = (
    "SELECT CASE WHEN {after} THEN '' WHEN {over} THEN r.status ELSE 'archived' END, count(*)"
    " FROM archived_rollouts s JOIN rollouts r ON r.number = s.number GROUP BY 1"
)


class NotYetAdmitted(LedgerError):
    """The rollout was admitted later."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(f"rollout {rollout_id!r} was not admitted yet; see when it was with `rollbook show`")


class Moment(msgspec.Struct, frozen=True):
    """Up to when events count: up to a position, or recorded at or before a time (microseconds, UTC)."""

    position: int | None = None
    at: int | None = None

    def takes(self, position: int, recorded_at: int) -> bool:
        """Whether an event is one of those."""
        return position <= self.position if self.position is not None else recorded_at <= (self.at or 0)


class RolloutThen(msgspec.Struct, frozen=True):
    """One rollout as it was: its last event then, and what the list would have shown."""

    position: int
    seq: int
    recorded_at: int
    view: RolloutView


class LedgerThen(msgspec.Struct, frozen=True):
    """Queues and totals as they were.

    ``events`` counts those up to the moment that are in the ledger, ``position`` is the last one's. ``statuses`` are
    as rollouts show them: one that a scheduler has claimed is queued there until its code runs, and running in
    ``queues``. ``archived`` are rollouts that lived then and whose events are in archives: how they stood then is not
    known here.
    """

    position: int
    events: int
    rollouts: int
    queues: dict[str, QueueCount]
    statuses: dict[str, int]
    archived: int


def time_of(text: str, *, now_us: int) -> int:
    """A time in microseconds since the epoch: ISO 8601 (UTC unless it says otherwise), or ago as in `-2h`, `-30d`.

    Raises:
        ValueError: it is neither; the message says what can be written.
    """
    if (ago := _AGO.fullmatch(text)) is not None:
        return now_us - int(ago[1]) * _UNITS_US[ago[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write 2030-01-31T12:00 (UTC), or -90s, -5m, -2h, -30d, -8w") from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment_of(text: str, *, now_us: int) -> Moment:
    """A moment: a position, or a time as in `time_of`.

    Raises:
        ValueError: it is neither.
    """
    if text.isascii() and text.isdigit():
        return Moment(position=int(text))
    return Moment(at=time_of(text, now_us=now_us))


def rollout_then(url: str | sa.URL, rollout_id: str, moment: Moment) -> RolloutThen:
    """One rollout as it was. Only its own events are read.

    Raises:
        UnknownRollout: there is none.
        NotYetAdmitted: there was none yet.
        RolloutArchived: its events are in an archive.
        SchemaError: there is no ledger, or one of another version.
        LedgerUnavailable: the database cannot be read, or an event is damaged.
    """
    database = database_of(parse_url(url) if isinstance(url, str) else url)
    check_database(database)
    if not storable(rollout_id):
        raise UnknownRollout(rollout_id)
    with database.snapshot() as snapshot:
        found = snapshot.rows("SELECT number FROM rollouts WHERE rollout_id = ?", (rollout_id,))
        if not found:
            raise UnknownRollout(rollout_id)
        ((number,),) = found
        archived = snapshot.rows(SELECT_ARCHIVED, (number,))
        if archived:
            raise RolloutArchived(rollout_id, str(Archived(*archived[0])))
        state: RolloutState | None = None
        history: HistoryRows = defaultdict(list)
        last: Recorded | None = None
        for row in _own_events(snapshot, number):
            if not moment.takes(row[0], row[5]):
                break
            last = _record(row)
            state = _evolved(state, last)
            add_history(last, history)
        if state is None or last is None:
            raise NotYetAdmitted(rollout_id)
        return RolloutThen(last.position, last.seq, last.recorded_at, _view(state, history))


def ledger_then(url: str | sa.URL, moment: Moment) -> LedgerThen:
    """Queues and totals as they were, in one pass over the ledger in constant memory.

    Raises:
        SchemaError: there is no ledger, or one of another version.
        LedgerUnavailable: the database cannot be read, or an event is damaged.
    """
    database = database_of(parse_url(url) if isinstance(url, str) else url)
    check_database(database)
    with database.snapshot() as snapshot:
        queues: dict[str, QueueCount] = {}
        statuses: Counter[str] = Counter()
        last = events = 0
        state: RolloutState | None = None
        passed = 0
        stream = snapshot.stream("events", _COLUMNS, ("number", "seq"))

        def settle() -> None:
            if state is not None:
                statuses[state.status] += 1
                count = queues.setdefault(state.queue, QueueCount())
                count.queued += state.claimable
                count.running += state.scheduler is not None

        while page := stream.fetch(PAGE_EVENTS):
            for row in page:
                number = row[1]
                if number == passed:
                    continue
                if state is not None and number != state.number:
                    settle()
                    state = None
                if not moment.takes(row[0], row[5]):
                    passed = number  # whatever a clock that was set back says of later ones
                    continue
                events += 1
                last = max(last, row[0])
                state = _evolved(state, _record(row))
        settle()
        archived = _archived_then(snapshot, moment)
        unknown = archived.pop("archived", 0)
        statuses.update(archived)
        return LedgerThen(last, events, statuses.total() + unknown, queues, dict(statuses), unknown)


def _own_events(snapshot: Snapshot, number: int) -> Iterator[Row]:
    after = (0, 0)
    while page := snapshot.events_of([number], after=after, limit=PAGE_EVENTS):
        yield from page
        after = (number, page[-1][2])


def _record(row: Row) -> Recorded:
    position, number, seq, kind, version, recorded_at, payload, digest = row
    try:
        return Recorded(position, number, seq, recorded_at, digest, codec.decode(kind, version, payload))
    except Exception as error:
        raise _damaged(row, error) from error


def _evolved(state: RolloutState | None, record: Recorded) -> RolloutState:
    try:
        return evolve(state, record)
    except Exception as error:
        raise _damaged((record.position, record.number, record.seq), error) from error


def _damaged(row: Row, error: Exception) -> LedgerUnavailable:
    where = f"rollout number {row[1]}, seq {row[2]}, position {row[0]}"
    return LedgerUnavailable(f"{where}: {error}; look for damage with `rollbook audit verify`")


def _archived_then(snapshot: Snapshot, moment: Moment) -> dict[str, int]:
    """Archived rollouts by the status they had, `archived` where that is not known."""
    if moment.position is not None:
        limit, after, over = moment.position, "s.first_position > ?", "s.last_position <= ?"
    else:
        limit, after, over = moment.at or 0, "r.admitted_at > ?", "r.changed_at <= ?"
    found: dict[str, int] = dict(snapshot.rows(_ARCHIVED_THEN.format(after=after, over=over), (limit, limit)))
    found.pop("", None)
    return found


def _view(state: RolloutState, history: HistoryRows) -> RolloutView:
    """As `listing` makes it of the tables."""
    shared: dict[str, Any] = {
        name: getattr(state, name) for name in RolloutView.__struct_fields__ if hasattr(state, name)
    }
    ((*_, label, _origin),) = history["admissions"]
    outcomes = history["outcomes"]
    last = len(history["scorings"])
    weighed = [
        value * weight
        for _, _, attempt, kind, _, value, weight, scoring in history["scores"]
        if kind == "reward" and (attempt, scoring) == (state.attempt, last) and None not in (value, weight)
        # What a rollout that failed was given until then is no reward of it.
        if state.status == "success" or scoring > 0
    ]
    return RolloutView(
        **shared,
        label=label,
        reward=sum(weighed) if weighed else None,
        err_message=outcomes[-1][-1] if outcomes else None,
    )
