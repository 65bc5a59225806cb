"""Audit: whether the ledger's events are the ones that were written. Hash chains, heads, counts, guards, pages."""

from __future__ import annotations

import sqlite3
import struct
from typing import Any

import msgspec
import sqlalchemy as sa

from . import chain
from .archives.checking import ArchivedTotals, check_archives
from .database import Snapshot, database_of
from .refusals import LedgerUnavailable, SchemaError
from .schema import check_database
from .urls import parse_url

MAX_FINDINGS = 20
PAGE_EVENTS = 1_000
_HEADLESS = """
    SELECT r.number, r.rollout_id, r.seq FROM rollouts r
    WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.number = r.number AND e.seq = r.seq)
      AND NOT EXISTS (SELECT 1 FROM archived_rollouts s WHERE s.number = r.number) ORDER BY r.number LIMIT ?
"""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong. ``check`` is ``pages``, ``guards``, ``chain``, ``head``, ``archive`` or ``counts``;
    position, rollout id and seq name the event, where it is about one."""

    check: str
    message: str
    position: int | None = None
    rollout_id: str | None = None
    seq: int | None = None

    def __str__(self) -> str:
        if self.position is None:
            return f"{self.check}: {self.message}"
        return f"{self.check}: event {self.position} (rollout {self.rollout_id!r}, seq {self.seq}): {self.message}"


class Inspection(msgspec.Struct, frozen=True):
    """What was looked at and what is wrong with it: the first 20 findings, at which the inspection ends.

    ``archived`` rollouts have no events here; what stands for them was looked at.
    """

    events: int
    rollouts: int
    findings: list[Finding]
    archived: int = 0

    @property
    def cut(self) -> bool:
        """Whether it ended early, so that there may be more findings."""
        return len(self.findings) >= MAX_FINDINGS


def audit(url: str | sa.URL) -> list[Finding]:
    """The findings of `inspect`; empty when the ledger is whole."""
    return inspect(url).findings


def inspect(url: str | sa.URL) -> Inspection:
    """Look for what is wrong with the ledger, damaged pages included.

    All of it is judged within one consistent view, so the answer is right while others write.

    Raises:
        SchemaError: there is no ledger, or one of another version.
        LedgerUnavailable: the file cannot be opened or is locked (damage inside it is a finding).
    """
    database = database_of(parse_url(url) if isinstance(url, str) else url)
    try:
        check_database(database)
    except SchemaError as error:
        if isinstance(error.__cause__, sqlite3.DatabaseError):
            return Inspection(0, 0, [Finding("pages", str(error))])
        raise
    with database.snapshot(undecoded=True) as snapshot:
        auditor = _Audit(snapshot)
        for step in (auditor.pages, auditor.guards, auditor.events, auditor.archives, auditor.counts):
            try:
                step()
            except LedgerUnavailable as error:
                auditor.find("pages", f"{step.__name__} cannot be read: {error.__cause__ or error}")
        return auditor.result()


class _Audit:
    """The checks over one connection, and what they found."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.findings: list[Finding] = []
        self._snapshot = snapshot
        self._ends: dict[int, tuple[int, bytes]] = {}
        """Seq and hash of the last event seen, for rollouts whose row names a later one."""
        self._events = 0
        self._rollouts = 0
        self._position = 0
        self._number = 0
        self._finished = False
        self._archived = ArchivedTotals()

    @property
    def full(self) -> bool:
        return len(self.findings) >= MAX_FINDINGS

    def result(self) -> Inspection:
        """What was seen so far, and what is wrong with it."""
        return Inspection(self._events, self._rollouts, self.findings[:MAX_FINDINGS], self._archived.rollouts)

    def find(self, kind: str, message: str) -> None:
        self.findings.append(Finding(kind, message))

    def pages(self) -> None:
        """The database's own view of its pages, where it has one: cells, indexes against tables."""
        for line in self._snapshot.damage():
            self.find("pages", line)

    def guards(self) -> None:
        """The triggers that refuse changes of events."""
        for name in self._snapshot.missing_guards():
            self.find("guards", f"trigger {name} is missing or changed; events can be altered unnoticed")

    def events(self) -> None:
        """Every event's hash, and every rollout's head."""
        while not self.full:
            page = self._snapshot.audited_events(self._position, PAGE_EVENTS)
            for row in page:
                self._event(row)
            if len(page) < PAGE_EVENTS:
                self._finished = True
                break
        if self._finished:
            self._heads()

    def _event(self, row: tuple[Any, ...]) -> None:
        position, number, seq, kind, version, recorded_at, payload, stored, typed, rollout_id, row_seq, row_head = row
        self._events += 1
        self._rollouts += seq == 1
        self._position = position
        if isinstance(number, int):
            self._number = max(self._number, number)
        wrong = None
        last_seq, last_hash = self._ends.get(number, (0, chain.GENESIS))
        if last_seq == 0 and isinstance(row_seq, int) and seq == row_seq + 1:
            last_seq, last_hash = row_seq, row_head
            wrong = f"it comes after seq {row_seq}, at which its rollout's row ends"
        if seq != last_seq + 1:
            wrong = f"its seq does not follow {last_seq}: events before it are missing, or it was altered"
        elif stored != _link(last_hash, number, seq, kind, version, recorded_at, payload):
            wrong = "its hash does not fit: this event or the hash before it was altered"
        elif not typed:
            wrong = "a column of it has another type: it was altered"
        elif rollout_id is None:
            wrong = f"there is no row for rollout number {number}"
        elif seq == row_seq and stored != row_head:
            wrong = "its rollout's row does not hold its hash"
        whole = isinstance(number, int) and isinstance(seq, int) and isinstance(stored, bytes)
        if wrong is not None:
            name = f"number {number}" if rollout_id is None else _text(rollout_id)
            self.findings.append(
                Finding("chain", wrong, position=position, rollout_id=name, seq=seq if isinstance(seq, int) else None)
            )
        elif seq == row_seq:
            self._ends.pop(number, None)
            return
        if whole:
            # The chain goes on from what is stored, so that one altered event is one finding or two.
            self._ends[number] = (seq, stored)

    def _heads(self) -> None:
        left = MAX_FINDINGS - len(self.findings)
        for number, rollout_id, seq in self._snapshot.rows(_HEADLESS, (max(left, 0),)):
            name = _text(rollout_id)
            self.find("head", f"the row of rollout {name!r} (number {number}) ends at seq {seq}, but no event does")

    def archives(self) -> None:
        """What stands for archived events."""
        for wrong in check_archives(self._snapshot, self._archived):
            if self.full:
                return
            self.find("archive", wrong)

    def counts(self) -> None:
        """The ledger's own count of its events."""
        if not self._finished or self.full:
            return
        rows = self._snapshot.rows("SELECT position, number, events FROM ledger_head")
        if len(rows) != 1:
            self.find("counts", f"ledger_head has {len(rows)} rows instead of one")
            return
        archived = self._archived
        expected = {
            "position": max(self._position, archived.position),
            "number": max(self._number, archived.number),
            "events": self._events + archived.events,
        }
        for (name, counted), stored in zip(expected.items(), rows[0], strict=True):
            if counted != stored:
                self.find("counts", f"ledger_head.{name} is {stored}, the events give {counted}")


def _link(
    previous: bytes, number: Any, seq: Any, kind: Any, version: Any, recorded_at: Any, payload: Any
) -> bytes | None:
    """The hash that an event should have; None where a damaged one cannot have any."""
    try:
        return chain.link(previous, number, seq, kind.decode(), version, recorded_at, payload)
    except (struct.error, TypeError, AttributeError, UnicodeDecodeError):
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
