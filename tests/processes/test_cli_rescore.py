"""`rollbook rescore`: scores beside the earlier ones, and a word for each rollout that has none."""

from __future__ import annotations

import getpass
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rollbook.ledger.archives.moving import archive
from rollbook.ledger.audit import audit
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.urls import SQLITE
from rollbook.settings import DATABASE_VARIABLE
from rollbook.traces.trace import Span, TraceError
from rollbook_client.events import TraceSaved
from tests.support import ledger as make
from tests.support.commands import CommandLine, outcome, start
from tests.support.saved_traces import played, run_rollout, saved
from tests.support.sql import rows

TASK = "tests.support.saved_traces:Sums"
STRICT = "tests.support.saved_traces:Strict"


@pytest.fixture
def database_url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    return database_url


@pytest.fixture
def rollbook(database_url: str, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(database_url, capfd)


@pytest.fixture
def writer(database_url: str) -> Iterator[make.Writing]:
    with make.writing(database_url) as writer:
        yield writer


def scores(database_url: str, rollout_id: str) -> list[tuple[object, ...]]:
    """Scoring, name, value and whether it counts, of everything but what the run itself recorded."""
    text = (
        "SELECT scoring, name, value, counts FROM score_summary WHERE rollout_id = ? AND scoring > 0 ORDER BY position"
    )
    return rows(database_url, text, (rollout_id,))


def events(database_url: str) -> int:
    found: int = rows(database_url, "SELECT count(*) FROM events")[0][0]
    return found


def test_new_scores_stand_before_the_old_ones_which_stay(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    run_rollout(writer, "r-2", saved(played("forty-two it is")))
    told = rollbook("rescore", "r-1", "r-2", "--task", TASK)
    assert told.code == 0
    lines = [line.split() for line in told.out.splitlines()]
    assert lines[0] == ["rollout", "outcome", "was", "reward", "null", "why"]
    assert lines[1] == ["r-1", "scored", "1.25", "1"]
    assert lines[2] == ["r-2", "scored", "1.25", "0", "short"]
    assert lines[-1] == ["2", "scored"]
    assert "scoring code may print" in told.err
    assert scores(database_url, "r-1") == [(1, "length", 2, 1), (1, "right", 1, 1), (1, "short", 1, 1)]
    assert scores(database_url, "r-2") == [(1, "length", 15, 1), (1, "right", 0, 1), (1, "short", None, 1)]
    assert rows(database_url, "SELECT reward FROM rollout_reports ORDER BY rollout_id") == [(1.0,), (0.0,)]
    asked = rows(database_url, "SELECT task, asked_by, reward FROM scorings ORDER BY number")
    assert asked == [(TASK, f"cli:{getpass.getuser()}", 1.0), (TASK, f"cli:{getpass.getuser()}", 0.0)]
    again = rollbook("rescore", "r-1", "--task", TASK, "--json")
    assert (again.json["was"], again.json["scoring"]) == (1.0, 2)
    assert [row[0] for row in scores(database_url, "r-1")] == [1, 1, 1, 2, 2, 2]
    assert [row[3] for row in scores(database_url, "r-1")] == [0, 0, 0, 1, 1, 1]
    assert verify_replay(database_url) == []
    assert audit(database_url) == []


def test_a_dry_run_scores_and_changes_nothing(rollbook: CommandLine, writer: make.Writing, database_url: str) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    before = events(database_url)
    told = rollbook("rescore", "--queue", make.QUEUE, "--task", TASK, "--dry-run")
    assert told.code == 0
    assert told.out.splitlines()[1].split() == ["r-1", "scored", "1.25", "1"]
    assert told.out.endswith("1 scored; nothing was changed (--dry-run)\n")
    shown = rollbook("rescore", "r-1", "--task", TASK, "--dry-run", "--json").json
    assert (shown["rewards"], shown["metrics"]) == ({"right": 1.0, "short": 1.0}, {"length": 2.0})
    assert (shown["reward"], shown["scoring"]) == (1.0, None)
    assert events(database_url) == before


def test_what_cannot_be_scored_is_named_and_skipped(
    rollbook: CommandLine, writer: make.Writing, database_url: str, tmp_path: Path
) -> None:
    run_rollout(writer, "archived", saved(played()))
    writer.clock.forward(60)
    archive(database_url, before_at=writer.clock.now, to=tmp_path / "old.jsonl.gz")
    run_rollout(writer, "bare")
    failure = TraceError(stage="agent", type="ValueError", message="it fell over", category="agent_error")
    run_rollout(writer, "fell", saved(played(ok=False, errors=[failure])))
    run_rollout(writer, "cut", saved(played(ok=False, spans=[Span("agent", 1, 2)])))
    writer.batch(make.admit("waits"))
    before = events(database_url)
    told = rollbook("rescore", "--prefix", "", "--task", TASK, "--json")
    assert told.code == 0
    assert {line["rollout_id"]: (line["outcome"], line["reason"]) for line in told.json_lines} == {
        "archived": ("skipped", "its events are archived"),
        "bare": ("skipped", "its last attempt left no trace"),
        "fell": ("skipped", "its run failed in agent: it fell over"),
        "cut": ("skipped", "its run was ended before it was scored"),
        "waits": ("skipped", "it is not over yet"),
    }
    assert events(database_url) == before
    assert rollbook("rescore", "--prefix", "", "--task", TASK).out.endswith("5 skipped\n")
    assert rollbook("rescore", "--prefix", "x", "--task", TASK).out == "no rollouts to score\n"


def test_what_goes_wrong_is_told_and_makes_the_exit_code_1(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "long", saved(played("forty")))
    damaged = msgspec.structs.replace(saved(played()), data="eJzLSM3JyQcABiwCFQ==")
    run_rollout(writer, "damaged", damaged)
    run_rollout(writer, "no-base64", TraceSaved(attempt=0, version=1, size_bytes=1, data="*"))
    other = played()
    other.task = {"id": "t-1", "prompt": "?"}
    run_rollout(writer, "other-data", saved(other))
    run_rollout(writer, "fine", saved(played("42")))
    names = ["long", "damaged", "no-base64", "other-data", "fine", "nobody"]
    told = rollbook("rescore", *names, "--task", STRICT, "--json", "--at-once", "2")
    assert told.code == 1
    lines = {line["rollout_id"]: line for line in told.json_lines}
    assert list(lines) == names
    assert lines["long"]["outcome"] == "scored"
    assert lines["long"]["rewards"] == {"right": 0.0, "short": None}
    assert ["5 characters are too many" in error for error in lines["long"]["errors"]] == [True]
    assert "this is no trace" in lines["damaged"]["reason"]
    assert "its trace is damaged" in lines["no-base64"]["reason"]
    assert "its data does not fit the task" in lines["other-data"]["reason"]
    assert "answer" in lines["other-data"]["reason"]
    assert lines["nobody"]["reason"] == "no rollout has this id"
    assert (lines["fine"]["outcome"], lines["fine"]["reward"]) == ("scored", 1.0)
    assert rows(database_url, "SELECT count(*) FROM scorings") == [(2,)]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--task", TASK], 2, "name ids, or --prefix, --queue or --label-prefix"),
        (["r-1", "--prefix", "r", "--task", TASK], 2, "name ids, or"),
        (["r-1"], 2, "--task"),
        (["r-1", "--task", "nowhere"], 1, "write it as 'package.module:Name'"),
        (["r-1", "--task", "no_such_module:Task"], 1, "No module named 'no_such_module'"),
        (["r-1", "--task", "tests.support.saved_traces:Nobody"], 1, "has no 'Nobody'"),
        (["r-1", "--task", "tests.support.saved_traces:Broken"], 1, "not a task"),
    ],
)
def test_wrong_uses_say_what_to_do(rollbook: CommandLine, arguments: list[str], code: int, says: str) -> None:
    told = rollbook("rescore", *arguments)
    assert told.code == code
    assert says in told.error_line


@pytest.mark.parametrize("database", [SQLITE])
def test_the_command_line_finds_tasks_in_its_folder(writer: make.Writing, database_url: str, tmp_path: Path) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    source = """
        from rollbook.tasks.hooks import reward
        from rollbook.tasks.task import Task
        from rollbook.traces.trace import Trace

        class Turns(Task):
            @reward
            def turns(self, trace: Trace) -> float:
                print("one more")
                return trace.num_turns / 2
    """
    (tmp_path / "turns_of_mine.py").write_text(textwrap.dedent(source))
    told = outcome(start("rescore", "r-1", "--task", "turns_of_mine:Turns", "--json", cwd=tmp_path))
    assert (told.code, told.err) == (0, "one more\n")
    assert (told.json["rewards"], told.json["reward"], told.json["scoring"]) == ({"turns": 0.5}, 0.5, 1)
    shown = outcome(start("show", "r-1", cwd=tmp_path))
    assert "scored anew" in shown.out
    assert scores(database_url, "r-1") == [(1, "turns", 0.5, 1)]
