"""The ledger as it was: at each moment what it then showed, whatever happened since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.archives.moving import archive
from rollbook.ledger.database import database_of
from rollbook.ledger.listing import RolloutView, rollouts_page
from rollbook.ledger.past import LedgerThen, Moment, NotYetAdmitted, ledger_then, rollout_then
from rollbook.ledger.reader import Reader
from rollbook.ledger.refusals import LedgerUnavailable, RolloutArchived, UnknownRollout
from rollbook.ledger.replay import Replay, replay
from rollbook.ledger.urls import parse_url
from tests.support.histories import interleaved, one_of_each_ending, recorded_and_scored_anew
from tests.support.ledger import Writing, admit, cancel, poll
from tests.support.sql import rows
from tests.support.tampering import alter


class Seen(msgspec.Struct):
    """What the ledger showed at a moment."""

    position: int
    at: int
    views: dict[str, RolloutView]
    totals: Replay


def look(database_url: str, writer: Writing) -> Seen:
    return Seen(
        replay(database_url).head.position,
        writer.clock.now,
        {view.rollout_id: view for view in asyncio.run(_views(database_url))},
        replay(database_url),
    )


async def _views(database_url: str) -> list[RolloutView]:
    reader = Reader(database_of(parse_url(database_url)))
    try:
        return await rollouts_page(reader)
    finally:
        await reader.close()


class Watching(Writing):
    """A writer that looks at the ledger after each batch."""

    def __init__(self, writer: Writing, database_url: str) -> None:
        self.clock = writer.clock
        self.store = writer.store
        self._database_url = database_url
        self.seen: list[Seen] = []

    def batch(self, *commands: cmd.Command[object]) -> list[object]:
        answers = super().batch(*commands)
        self.seen.append(look(self._database_url, self))
        self.clock.forward(1)
        return answers


@pytest.mark.parametrize("history", [one_of_each_ending, interleaved, recorded_and_scored_anew])
def test_every_moment_is_seen_as_it_was(writer: Writing, database_url: str, history: Callable[[Writing], None]) -> None:
    watching = Watching(writer, database_url)
    history(watching)
    ids = {rollout_id for seen in watching.seen for rollout_id in seen.views}
    assert len(ids) >= 3
    for seen in watching.seen:
        for moment in (Moment(position=seen.position), Moment(at=seen.at)):
            then = ledger_then(database_url, moment)
            head = seen.totals.head
            assert (then.position, then.events, then.rollouts) == (head.position, head.events, head.number)
            assert (then.queues, then.statuses) == (seen.totals.queues, seen.totals.statuses)
            for rollout_id in ids:
                if rollout_id in seen.views:
                    assert rollout_then(database_url, rollout_id, moment).view == seen.views[rollout_id]
                else:
                    with pytest.raises(NotYetAdmitted, match="not admitted yet"):
                        rollout_then(database_url, rollout_id, moment)


def test_last_event_of_then_is_named(writer: Writing, database_url: str) -> None:
    interleaved(writer)
    position, seq, at = rows(
        database_url, "SELECT position, seq, recorded_at FROM events WHERE number = 2 ORDER BY seq LIMIT 1 OFFSET 1"
    )[0]
    then = rollout_then(database_url, "r-2", Moment(position=position))
    assert (then.position, then.seq, then.recorded_at) == (position, seq, at)


def test_before_everything_there_is_nothing(writer: Writing, database_url: str) -> None:
    interleaved(writer)
    for moment in (Moment(position=0), Moment(at=0)):
        assert ledger_then(database_url, moment) == LedgerThen(0, 0, 0, {}, {}, 0)


def test_unknown_rollout_is_told(writer: Writing, database_url: str) -> None:
    interleaved(writer)
    for name in ("nobody", "a\x00b", "\ud800"):
        with pytest.raises(UnknownRollout):
            rollout_then(database_url, name, Moment(position=99))


def test_clock_that_was_set_back_leaves_whole_histories(writer: Writing, database_url: str) -> None:
    writer.do(admit("r-1"))
    writer.clock.forward(10)
    writer.do(poll("r-1"))
    writer.clock.forward(-5)
    middle = writer.clock.now
    writer.do(cancel("r-1"))
    then = rollout_then(database_url, "r-1", Moment(at=middle))
    assert (then.view.status, then.seq) == ("queued", 1)
    assert ledger_then(database_url, Moment(at=middle)).statuses == {"queued": 1}


def test_damaged_event_is_named(writer: Writing, database_url: str) -> None:
    interleaved(writer)
    alter(database_url, "UPDATE events SET payload = '{\"broken' WHERE number = 1 AND seq = 2")
    with pytest.raises(LedgerUnavailable, match=r"number 1, seq 2, position \d+: .*audit verify"):
        ledger_then(database_url, Moment(position=99))
    with pytest.raises(LedgerUnavailable, match=r"number 1, seq 2"):
        rollout_then(database_url, "r-1", Moment(position=99))
    assert rollout_then(database_url, "r-2", Moment(position=99)).view.rollout_id == "r-2"


def test_archived_rollouts_are_known_outside_their_lives(writer: Writing, database_url: str, tmp_path: Path) -> None:
    watching = Watching(writer, database_url)
    one_of_each_ending(watching)
    archive(database_url, before_at=2**62, to=tmp_path / "old.jsonl.gz")
    last = watching.seen[-1]
    for moment in (Moment(position=last.position), Moment(at=last.at)):
        then = ledger_then(database_url, moment)
        assert (then.statuses, then.rollouts, then.archived) == (last.totals.statuses, 3, 0)
        assert ledger_then(database_url, Moment(position=0)).rollouts == 0
    middle = next(seen for seen in watching.seen if len(seen.views) == 1)
    for moment in (Moment(position=middle.position), Moment(at=middle.at)):
        assert (ledger_then(database_url, moment).rollouts, ledger_then(database_url, moment).archived) == (1, 1)
    with pytest.raises(RolloutArchived, match=r"old\.jsonl\.gz"):
        rollout_then(database_url, "r-1", Moment(position=1))
