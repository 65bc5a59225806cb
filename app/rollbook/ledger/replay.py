"""Replay: the whole ledger folded anew from its events, and compared with the rows that the writer keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import sqlalchemy as sa

from .comparing import MAX_DIFFERENCES, Comparison, Difference
from .database import Snapshot, database_of
from .folding import Replay, Totals, fold
from .refusals import LedgerUnavailable
from .schema import check_database
from .urls import parse_url

__all__ = ["MAX_DIFFERENCES", "Difference", "Replay", "Verification", "replay", "verify", "verify_replay"]


class Verification(msgspec.Struct, frozen=True):
    """What was compared and where it differs: the first 20 differences, at which the comparison ends.

    ``archived`` rollouts have no events here: their rows were held to their stubs.
    """

    events: int
    rollouts: int
    differences: list[Difference]
    archived: int

    @property
    def cut(self) -> bool:
        """Whether it ended early, so that there may be more differences."""
        return len(self.differences) >= MAX_DIFFERENCES


def replay(url: str | sa.URL) -> Replay:
    """Fold all events into fresh totals, within one consistent view of the ledger.

    Raises:
        SchemaError: there is no ledger, or one of another version.
        LedgerUnavailable: the database cannot be read, or its events do not fold (`verify_replay` names which).
    """
    with _snapshot(url) as snapshot:
        totals = Totals()
        for chunk in fold(snapshot):
            for error in chunk.errors.values():
                raise LedgerUnavailable(f"{error}; look for damage with `rollbook audit verify`")
            totals.add(chunk)
        return totals.result(snapshot)


def verify_replay(url: str | sa.URL) -> list[Difference]:
    """The differences that `verify` finds; empty when the ledger is whole."""
    return verify(url).differences


def verify(url: str | sa.URL) -> Verification:
    """Compare the live rows with a replay.

    `rollouts`, every history table, `queue_counts` and `ledger_head` are compared, all in one consistent view, so the
    answer is right while others write.

    Raises:
        SchemaError: there is no ledger, or one of another version.
        LedgerUnavailable: the database cannot be read.
    """
    with _snapshot(url) as snapshot:
        comparison = Comparison(snapshot)
        totals = Totals()
        events = rollouts = archived = 0
        for chunk in fold(snapshot):
            events += chunk.events
            rollouts += len(chunk.states) + len(chunk.errors)
            archived += len(chunk.stubs)
            totals.add(chunk)
            comparison.chunk(chunk)
            if comparison.full:
                break
        else:
            comparison.leftovers()
            comparison.totals(totals.result(snapshot))
        return Verification(events, rollouts, comparison.differences[:MAX_DIFFERENCES], archived)


@contextmanager
def _snapshot(url: str | sa.URL) -> Iterator[Snapshot]:
    database = database_of(parse_url(url) if isinstance(url, str) else url)
    check_database(database)
    with database.snapshot() as snapshot:
        yield snapshot
