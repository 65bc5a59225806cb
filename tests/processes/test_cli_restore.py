"""`rollbook rescore --restore`: an earlier scoring stands before a rollout again, and nothing of the history goes."""

from __future__ import annotations

import getpass
from pathlib import Path

from rollbook.ledger.archives.moving import archive
from rollbook.ledger.audit import audit
from rollbook.ledger.replay import verify_replay
from rollbook_client.events import MetricRecorded, RewardRecorded
from tests.support import ledger as make
from tests.support.commands import CommandLine
from tests.support.saved_traces import played, run_rollout, saved
from tests.support.sql import rows

TASK = "tests.support.saved_traces:Sums"
STRICT = "tests.support.saved_traces:Strict"
FRONT = "SELECT rollout_id, reward, rewards, metrics, scoring FROM rollout_reports ORDER BY rollout_id"


def test_an_earlier_scoring_comes_back_in_front_and_all_stay(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "r-1", saved(played("forty")), MetricRecorded(attempt=0, name="length", value=7.0))
    own = rows(database_url, FRONT)
    assert rollbook("rescore", "r-1", "--task", TASK).code == 0
    good = rows(database_url, FRONT)
    assert rollbook("rescore", "r-1", "--task", STRICT, "--keep-partial").code == 1
    told = rollbook("rescore", "r-1", "--restore", "1")
    assert told.code == 0
    assert [line.split() for line in told.out.splitlines()] == [
        ["rollout", "outcome", "was", "reward", "null", "why"],
        ["r-1", "restored", "0", "0"],
        [],
        ["1", "restored"],
    ]
    assert [row[:4] for row in rows(database_url, FRONT)] == [row[:4] for row in good]
    back = rollbook("rescore", "r-1", "--restore", "0", "--json")
    assert (back.code, back.json["outcome"], back.json["scoring"]) == (0, "restored", 4)
    assert (back.json["was"], back.json["reward"], back.json["metrics"]) == (0.0, 1.25, {"length": 7.0})
    assert [row[:4] for row in rows(database_url, FRONT)] == [row[:4] for row in own]
    asked = rows(database_url, "SELECT scoring, task, asked_by FROM scorings ORDER BY scoring")
    by = f"cli:{getpass.getuser()}"
    assert asked == [(1, TASK, by), (2, STRICT, by), (3, "restored scoring 1", by), (4, "restored scoring 0", by)]
    assert (verify_replay(database_url), audit(database_url)) == ([], [])


def test_what_is_in_front_already_is_not_written_again(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    run_rollout(writer, "r-2", saved(played("42")))
    rollbook("rescore", "r-1", "--task", TASK)
    first, again = (rollbook("rescore", "--prefix", "r-", "--restore", "0", "--json") for _ in range(2))
    assert (first.code, [line["outcome"] for line in first.json_lines]) == (0, ["restored", "skipped"])
    assert (again.code, [line["outcome"] for line in again.json_lines]) == (0, ["skipped", "skipped"])
    assert again.json_lines[0]["reason"] == "scoring 0 is in front already"
    assert rows(database_url, "SELECT max(scoring) FROM scorings") == [(2,)]


def test_equal_scores_of_another_task_are_not_in_front_already(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    for number in ("0", "1"):  # a broken task that gives what the rollout's own scoring gave
        assert rollbook("rescore", "r-1", "--task", TASK).code == 0
        assert rollbook("rescore", "r-1", "--restore", number).code == 0
    asked = rows(database_url, "SELECT scoring, task FROM scorings ORDER BY scoring")
    assert asked == [(1, TASK), (2, "restored scoring 0"), (3, TASK), (4, "restored scoring 1")]
    # Scorings 1 and 4 are the same one, and so are 0 and 2, whatever their number.
    outcomes: dict[str, list[tuple[str, int | None]]] = {}
    for number in ("1", "4", "3", "3", "2", "0"):
        told = rollbook("rescore", "r-1", "--restore", number, "--json").json
        outcomes.setdefault(number, []).append((told["outcome"], told["scoring"]))
    assert outcomes == {
        "1": [("skipped", None)],
        "4": [("skipped", None)],
        "3": [("restored", 5), ("skipped", None)],
        "2": [("restored", 6)],
        "0": [("skipped", None)],
    }
    front = rows(database_url, "SELECT scoring, task FROM scorings ORDER BY scoring DESC LIMIT 1")
    assert front == [(6, "restored scoring 2")]


def test_a_dry_run_tells_what_would_stand_there(rollbook: CommandLine, writer: make.Writing, database_url: str) -> None:
    run_rollout(writer, "r-1", saved(played("42")))
    rollbook("rescore", "r-1", "--task", TASK)
    told = rollbook("rescore", "r-1", "--restore", "0", "--dry-run")
    assert told.out.splitlines()[1].split() == ["r-1", "restored", "1", "1.25"]
    assert told.out.endswith("1 restored; nothing was changed (--dry-run)\n")
    assert rows(database_url, "SELECT max(scoring) FROM scorings") == [(1,)]


def test_a_failed_rollouts_own_scores_come_back_as_the_null_that_they_were(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    writer.batch(make.scheduler(), make.admit("r-1"))
    writer.do(make.claim())
    writer.batch(
        make.record(
            saved(played("42")),
            RewardRecorded(attempt=0, name="right", value=1.0, weight=0.5),
            MetricRecorded(attempt=0, name="length", value=2.0),
        ),
        make.finish("r-1", status="failure", err_message="short raised", err_category="agent_error", rewards=()),
    )
    rollbook("rescore", "r-1", "--task", TASK)
    assert [row[1] for row in rows(database_url, FRONT)] == [1.0]
    assert rollbook("rescore", "r-1", "--restore", "0").code == 0
    assert rows(database_url, FRONT) == [("r-1", None, '{"right": null}', '{"length": 2.0}', 2)]


def test_a_scoring_that_there_is_not_and_a_rollout_that_cannot_be_written_are_named(
    rollbook: CommandLine, writer: make.Writing, database_url: str, tmp_path: Path
) -> None:
    run_rollout(writer, "archived", saved(played()))
    writer.clock.forward(60)
    archive(database_url, before_at=writer.clock.now, to=tmp_path / "old.jsonl.gz")
    run_rollout(writer, "r-1", saved(played("42")))
    writer.batch(make.admit("waits"))
    told = rollbook("rescore", "--prefix", "", "--restore", "2", "--json")
    assert told.code == 1
    assert {line["rollout_id"]: (line["outcome"], line["reason"]) for line in told.json_lines} == {
        "archived": ("skipped", "its events are archived"),
        "r-1": ("failed", "it has no scoring 2; its last one is 0"),
        "waits": ("skipped", "it is not over yet"),
    }
