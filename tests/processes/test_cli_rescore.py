"""`rollbook rescore`: scores beside the earlier ones, and a word for each rollout that has none."""

from __future__ import annotations

import getpass
import textwrap
from pathlib import Path

import msgspec
import pytest

from rollbook.ledger.archives.moving import archive
from rollbook.ledger.audit import audit
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.urls import SQLITE
from rollbook.settings import DATABASE_VARIABLE
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward
from rollbook.tasks.task import Task
from rollbook.traces.trace import Span, TraceError
from rollbook_client.events import TraceSaved
from tests.support import ledger as make
from tests.support.commands import CommandLine, outcome, start
from tests.support.saved_traces import played, run_rollout, saved
from tests.support.sql import rows

TASK = "tests.support.saved_traces:Sums"
STRICT = "tests.support.saved_traces:Strict"
AWAY = "tests.support.saved_traces:Away"
ROOTED = "tests.support.saved_traces:Rooted"
FRONT = "SELECT scoring, reward, rewards, metrics FROM rollout_reports ORDER BY rollout_id"


@pytest.fixture
def database_url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    return database_url


class Silent(Task[TaskData]):
    """A task that has nothing to say."""

    @reward
    def right(self) -> None:
        return None


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
    assert (lines["long"]["outcome"], lines["long"]["scoring"]) == ("incomplete", None)
    assert lines["long"]["rewards"] == {"right": 0.0, "short": None}
    assert lines["long"]["lost"] == ["@reward Strict.short"]
    assert ["5 characters are too many" in error for error in lines["long"]["errors"]] == [True]
    assert "this is no trace" in lines["damaged"]["reason"]
    assert "its trace is damaged" in lines["no-base64"]["reason"]
    assert "its data does not fit the task" in lines["other-data"]["reason"]
    assert "answer" in lines["other-data"]["reason"]
    assert "no rollout has this id; list what there is" in lines["nobody"]["reason"]
    assert (lines["fine"]["outcome"], lines["fine"]["reward"]) == ("scored", 1.0)
    assert rows(database_url, "SELECT count(*) FROM scorings") == [(1,)]
    assert told.err.splitlines()[-1] == (
        "rollbook: 4 rollouts could not be scored, and the lines above say why; nothing is written for 1 rollout, "
        "since scores did not come back from @reward Strict.short (1); mend that and run this again, or put what came "
        "back in front with --keep-partial"
    )


def test_a_task_of_which_nothing_works_takes_no_score_away(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    run_rollout(writer, "r-2", saved(played("42")))
    assert rollbook("rescore", "r-2", "--task", TASK).code == 0
    before, front = events(database_url), rows(database_url, FRONT)
    for arguments in (["--dry-run"], []):
        told = rollbook("rescore", "--prefix", "r-", "--task", AWAY, *arguments)
        assert told.code == 1
        assert [line.split()[:3] for line in told.out.splitlines() if line.startswith("r-")] == [
            ["r-1", "incomplete", "1.25"],
            ["r-2", "incomplete", "1"],
        ]
        assert "the checker is gone" in told.out
        line = told.err.splitlines()[-1]
        assert "nothing is written for 2 rollouts" in line
        for who in ("@metric Away.length", "@reward Away.right", "@reward Away.short", "the judge style"):
            assert f"{who} (2)" in line
        assert (events(database_url), rows(database_url, FRONT)) == (before, front)


def test_what_came_back_is_kept_where_that_is_asked_for(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "r-1", saved(played("forty")))
    told = rollbook("rescore", "r-1", "--task", STRICT, "--keep-partial")
    assert told.code == 1
    assert told.out.splitlines()[1].split()[:5] == ["r-1", "scored", "1.25", "0", "short"]
    assert "1 rollout scored in part, since scores did not come back from @reward Strict.short (1)" in told.err
    # Every name is there, and the method that raised lost its own score alone.
    assert scores(database_url, "r-1") == [(1, "length", 5, 1), (1, "right", 0, 1), (1, "short", None, 1)]


def test_nulls_that_the_task_means_are_no_loss(rollbook: CommandLine, writer: make.Writing, database_url: str) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    told = rollbook("rescore", "r-1", "--task", "tests.processes.test_cli_rescore:Silent", "--json")
    assert (told.code, told.json["outcome"], told.json["rewards"]) == (0, "scored", {"right": None})
    assert rows(database_url, FRONT) == [(1, None, '{"right": null}', None)]


def test_a_method_that_needs_the_runtime_is_named_before_anything_is_scored(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    told = rollbook("rescore", "r-1", "--task", ROOTED)
    assert told.code == 2
    assert "scored without a runtime, and @reward Rooted.right cannot do without one" in told.error_line
    assert "`Runtime | None`" in told.error_line
    assert rows(database_url, "SELECT count(*) FROM scorings") == [(0,)]
    partial = rollbook("rescore", "r-1", "--task", ROOTED, "--keep-partial", "--json")
    assert (partial.code, partial.json["rewards"]) == (1, {"right": None, "short": 1.0})
    assert "@reward Rooted.right: it asks for the runtime" in partial.json["errors"][0]


def test_a_metric_with_the_name_of_a_reward_stays_a_metric(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    assert rollbook("rescore", "r-1", "--task", "tests.support.saved_traces:Doubled").code == 0
    assert rows(database_url, FRONT) == [(1, 1.0, '{"turns": 0.5}', '{"turns": 1.0}')]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (["--prefix", "R-"], "no rollout has an id that starts with 'R-'; list what there is with `rollbook rollouts`"),
        (
            ["--prefix", "r-", "--queue", "typo", "--label-prefix", "maths/"],
            "no rollout has the queue 'typo' and an id that starts with 'r-' and a label that starts with 'maths/'",
        ),
    ],
)
@pytest.mark.parametrize("work", [["--task", TASK], ["--restore", "0"], ["--task", TASK, "--json"]], ids=str)
def test_a_choice_that_no_rollout_fits_is_an_error(
    rollbook: CommandLine, writer: make.Writing, choice: list[str], says: str, work: list[str]
) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    told = rollbook("rescore", *choice, *work)
    assert (told.code, told.out) == (1, "")
    assert says in told.error_line


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--task", TASK], 2, "name ids, or --prefix, --queue or --label-prefix"),
        (["r-1", "--prefix", "r", "--task", TASK], 2, "name ids, or"),
        (["r-1"], 2, "name a task to score with, or a scoring with --restore"),
        (["r-1", "--task", TASK, "--restore", "0"], 2, "name a task to score with, or"),
        (["r-1", "--restore", "-1"], 2, "--restore"),
        (["r-1", "--task", "nowhere"], 2, "write it as 'package.module:Name'"),
        (["r-1", "--task", "no_such_module:Task"], 2, "No module named 'no_such_module'"),
        (["r-1", "--task", "tests.support.saved_traces:Nobody"], 2, "has no 'Nobody'"),
        (["r-1", "--task", "tests.support.saved_traces:Broken"], 2, "not a task"),
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
    by_file = f"{tmp_path.name}/turns_of_mine.py:Turns"
    told = outcome(start("rescore", "r-1", "--task", by_file, "--json", cwd=tmp_path.parent))
    assert (told.code, told.err, told.json["rewards"]) == (0, "one more\n", {"turns": 0.5})
