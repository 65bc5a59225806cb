"""Processes that are killed in the middle of writing: what was acknowledged is there, and the ledger is whole."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.audit import audit
from rollbook.ledger.replay import verify_replay
from tests.support.busy_writer import run
from tests.support.forking import FORKED, LIMIT_SEC
from tests.support.ledger import admit, claim, finish, rows, scheduler, writing


class BusyWriter:
    """A process at work on the ledger, and what it said."""

    def __init__(self, database_url: str, name: str) -> None:
        ours, theirs = FORKED.Pipe(duplex=False)
        with ours, theirs:
            self._output = os.fdopen(os.dup(ours.fileno()), encoding="utf-8")
            self._process = FORKED.Process(target=run, args=(database_url, name, theirs, dict(os.environ)))
            self._process.start()
        self.said: list[str] = []

    def until(self, lines: int) -> None:
        """Wait until it has told so many acknowledgements."""
        while len(self.said) < lines:
            line = self._output.readline()
            assert line, "the writer ended by itself"
            self.said.append(line.strip())

    def kill(self) -> None:
        """Kill it without a warning; harmless when it is over."""
        if self._output.closed:
            return
        self._process.kill()
        with self._output:
            # The last line may be cut in the middle of being printed.
            self.said.extend(self._output.read().split("\n")[:-1])
        self._process.join(LIMIT_SEC)
        assert self._process.exitcode == -signal.SIGKILL

    def told(self, what: str) -> set[str]:
        return {line.split(" ", 1)[1] for line in self.said if line.startswith(f"{what} ")}


Start = Callable[[str], BusyWriter]


@pytest.fixture
def start(database_url: str) -> Iterator[Start]:
    """Starts processes by their names; none outlives the test."""
    started: list[BusyWriter] = []

    def make(name: str) -> BusyWriter:
        started.append(BusyWriter(database_url, name))
        return started[-1]

    yield make
    for process in started:
        process.kill()


@pytest.mark.parametrize("writers", [1, 3])
def test_acknowledged_commands_survive_kills_and_nothing_is_half_written(
    start: Start, database_url: str, writers: int
) -> None:
    admitted: set[str] = set()
    finished: set[str] = set()
    for turn in range(3):
        working = [start(f"p{turn}-{i}") for i in range(writers)]
        for i, process in enumerate(working):
            process.until(40 + 70 * i)
        for process in working:
            process.kill()
            admitted |= process.told("admitted")
            finished |= process.told("finished")
        assert audit(database_url) == []
        assert verify_replay(database_url) == []
    assert admitted <= {name for (name,) in rows(database_url, "SELECT rollout_id FROM rollouts")}
    ended = rows(database_url, "SELECT rollout_id FROM rollouts WHERE finished_at IS NOT NULL")
    assert finished <= {name for (name,) in ended}
    assert finished
    assert rows(database_url, "SELECT count(*) FROM (SELECT 1 FROM outcomes GROUP BY number HAVING count(*) > 1)") == [
        (0,)
    ]


def test_survivor_goes_on_while_another_is_killed(start: Start, database_url: str) -> None:
    survivor, victim = start("survivor"), start("victim")
    survivor.until(30)
    victim.until(30)
    victim.kill()
    survivor.until(len(survivor.said) + 60)
    survivor.kill()
    assert audit(database_url) == []
    assert verify_replay(database_url) == []


def test_work_of_killed_processes_is_taken_over_to_one_ending_each(start: Start, database_url: str) -> None:
    process = start("killed")
    process.until(60)
    process.kill()
    with writing(database_url) as writer:
        writer.clock.now = rows(database_url, "SELECT max(recorded_at) FROM events")[0][0]
        writer.do(scheduler("heir", queues=("killed",), known_dead=("killed",)))
        while writer.do(cmd.TakeOver(dead_after_us=1)):
            continue
        while claimed := writer.do(claim("heir", queues=("killed",))):
            writer.batch(*(finish(state.rollout_id, attempt=state.attempt, scheduler="heir") for state in claimed))
        assert writer.do(admit("later")).status == "queued"
    assert rows(database_url, "SELECT count(*) FROM rollouts WHERE finished_at IS NULL") == [(1,)]
    counts = rows(database_url, "SELECT DISTINCT n FROM (SELECT count(*) AS n FROM outcomes GROUP BY number)")
    assert counts == [(1,)]
    assert rows(database_url, "SELECT queued, running FROM queue_counts WHERE queue = 'killed'") == [(0, 0)]
    assert audit(database_url) == []
    assert verify_replay(database_url) == []
