"""Commands that read: rollouts, show, events."""

from __future__ import annotations

import asyncio
import getpass
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rollbook.ledger.commands import Score
from rollbook.ledger.database import database_of
from rollbook.ledger.keyring import process_keys
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.urls import parse_url
from rollbook.server.answers import json_bytes
from rollbook.server.pages import events_page, rollouts_page
from rollbook.server.query import RolloutsQuery
from rollbook.settings import DATABASE_VARIABLE
from rollbook_client.events import StageSpan
from tests.support import ledger as make
from tests.support.commands import CommandLine, Outcome, outcome, start

LONG_ID = "experiment-" + "x" * 300
ODD_ID = "odd \x1b[31m id"


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
        process_keys(database_of(parse_url(database_url)))  # the key that the server which admits had made
        yield writer


def finished(writer: make.Writing) -> None:
    """A rollout that was lost once and then succeeded, and one that waits."""
    writer.batch(make.scheduler(), make.admit("math-1"))
    writer.batch(make.claim())
    writer.batch(make.close("math-1"))
    writer.batch(make.claim())
    writer.batch(make.enter("math-1", attempt=2))
    writer.clock.forward(2)
    span = StageSpan("agent", make.START_US, make.START_US + 1_500_000)
    writer.batch(
        make.finish(
            "math-1", attempt=2, spans=(span,), rewards=(Score("reward", 1.0),), metrics=(Score("speed", None),)
        ),
        make.admit("math-2"),
    )


def test_empty_ledger_lists_nothing(rollbook: CommandLine, writer: make.Writing) -> None:
    assert rollbook("rollouts") == Outcome(0, "no rollouts\n", "")
    assert rollbook("rollouts", "--json") == Outcome(0, "", "")
    assert rollbook("events") == Outcome(0, "", "")


def test_rollouts_are_listed_the_newest_first_one_object_on_each_line(
    rollbook: CommandLine, writer: make.Writing
) -> None:
    finished(writer)
    listed = rollbook("rollouts", "--json").json_lines
    assert [(item["rollout_id"], item["status"], item["attempt"]) for item in listed] == [
        ("math-2", "queued", 0),
        ("math-1", "success", 2),
    ]
    assert [(item["label"], item["reward"], item["active"]) for item in listed] == [
        ("6", None, True),
        ("6", 1.0, False),
    ]
    assert listed[1]["finished_at"] == make.START_US + 2_000_000
    assert listed[0]["finished_at"] is None
    assert "lease_digest" not in listed[0]


def test_rollouts_can_be_chosen_and_paged(rollbook: CommandLine, writer: make.Writing) -> None:
    finished(writer)
    writer.batch(*(make.admit(f"other-{n}", queue="second") for n in range(5)))

    def listed(*options: str) -> list[str]:
        return [item["rollout_id"] for item in rollbook("rollouts", "--json", *options).json_lines]

    assert listed("--status", "success") == ["math-1"]
    assert listed("--queue", "second", "--limit", "2") == ["other-4", "other-3"]
    assert listed("--prefix", "math-") == ["math-2", "math-1"]
    assert listed("--before", "3") == ["math-2", "math-1"]
    page = rollbook("rollouts", "--limit", "5")
    assert page.out.endswith("Older ones: --before 3\n")


def test_piped_tables_cut_no_id_and_hold_no_control_character(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.batch(make.admit(LONG_ID), make.admit(ODD_ID), make.admit("[red]markup[/red]"))
    listed = rollbook("rollouts").out
    assert LONG_ID in listed
    assert "[red]markup[/red]" in listed
    assert "odd \\x1b[31m id" in listed
    assert "\x1b" not in listed
    assert "\x1b" not in rollbook("events").out
    assert rollbook("rollouts", "--json").json_lines[1]["rollout_id"] == ODD_ID


def test_show_tells_everything_about_a_rollout(rollbook: CommandLine, writer: make.Writing) -> None:
    finished(writer)
    shown = rollbook("show", "math-1", "--json").json
    assert (shown["status"], shown["attempt"], shown["attempts_counted"]) == ("success", 2, 2)
    assert [(item["attempt"], item["outcome"], item["reason"]) for item in shown["attempts"]] == [
        (1, "lost", "its runner died"),
        (2, "completed", None),
    ]
    assert shown["phases"] == [{"attempt": 2, "phase": "running", "at": make.START_US}]
    assert shown["spans"] == [
        {"attempt": 2, "stage": "agent", "started_at": make.START_US, "ended_at": make.START_US + 1_500_000}
    ]
    assert [(item["kind"], item["name"], item["value"]) for item in shown["scores"]] == [
        ("reward", "reward", 1.0),
        ("metric", "speed", None),
    ]
    assert shown["result"]["status"] == "success"
    assert shown["result"]["sample"]["label"] == "6"
    assert shown["request"]["initial_messages"][0]["content"] == "2 x 3?"
    assert rollbook("show", "math-2", "--json").json["result"] is None


def test_show_is_readable_without_a_terminal(rollbook: CommandLine, writer: make.Writing) -> None:
    finished(writer)
    shown = rollbook("show", "math-1")
    assert shown.code == 0
    for part in ("success", "its runner died", "1.500 s", "speed", '"reward":1.0'):
        assert part in shown.out
    assert "\x1b" not in shown.out


def test_error_text_that_utf8_cannot_hold_is_shown_all_the_same(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.batch(make.scheduler(), make.admit("r-1"))
    writer.batch(make.claim())
    writer.batch(make.finish("r-1", status="failure", sample=None, err_message="bad \ud800 text", rewards=()))
    assert rollbook("show", "r-1", "--json").json["result"]["err_message"] == "bad \ud800 text"
    assert "bad \\ud800 text" in rollbook("show", "r-1").out
    assert rollbook("events", "--json").json_lines[-1]["rollout_id"] == "r-1"


def test_cancellation_is_recorded_with_the_user(rollbook: CommandLine, writer: make.Writing) -> None:
    finished(writer)
    found = rollbook("cancel", "math-1", "math-2", "math-2", "nobody", "--json").json
    assert found == {"dispositions": {"math-1": "not_found", "math-2": "cancelled_queued", "nobody": "not_found"}}
    shown = rollbook("show", "math-2", "--json").json
    assert shown["status"] == "cancelled"
    assert [(item["requested_by"], item["selector"]) for item in shown["cancellations"]] == [
        (f"cli:{getpass.getuser()}", "ids")
    ]


def test_cancel_takes_a_prefix_or_everything(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.batch(make.admit("a-1"), make.admit("a-2"), make.admit("b-1"))
    assert rollbook("cancel", "--prefix", "a-", "--json").json == {
        "dispositions": {"a-1": "cancelled_queued", "a-2": "cancelled_queued"}
    }
    lines = [line.split(maxsplit=1) for line in rollbook("cancel", "--all").out.splitlines()]
    assert ["b-1", "cancelled_queued"] in lines
    assert rollbook("cancel", "nobody").out.splitlines()[1] == "nobody   over or unknown"


def test_cancel_of_many_shows_only_what_there_was_to_cancel(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.clock.forward((time.time_ns() // 1_000 - writer.clock.now) / 1_000_000)  # these ended just now
    writer.batch(*(make.admit(f"a-{n}") for n in range(3)))
    assert rollbook("cancel", "a-1", "a-2").out.count("cancelled_queued") == 2
    shown = rollbook("cancel", "--prefix", "a-").out.splitlines()
    assert shown[1].split() == ["a-0", "cancelled_queued"]
    assert shown[2:] == ["2 others are over already"]
    assert rollbook("cancel", "--all").out == "no rollouts to cancel\n"
    assert set(rollbook("cancel", "--all", "--json").json["dispositions"]) == {"a-0", "a-1", "a-2"}


@pytest.mark.parametrize("arguments", [(), ("a", "--all"), ("--prefix", "a", "--all"), ("a", "--prefix", "")])
def test_cancel_needs_exactly_one_selector(
    rollbook: CommandLine, writer: make.Writing, arguments: tuple[str, ...]
) -> None:
    refused = rollbook("cancel", *arguments)
    assert refused.code == 2
    assert "name exactly one: ids, --prefix or --all" in refused.error_line


def test_events_are_printed_as_the_ledger_holds_them(rollbook: CommandLine, writer: make.Writing) -> None:
    finished(writer)
    printed = rollbook("events", "--json").json_lines
    assert [item["position"] for item in printed] == list(range(1, len(printed) + 1))
    assert [item["type"] for item in printed][:3] == ["rollout_admitted", "attempt_started", "attempt_ended"]
    assert printed[0]["payload"]["request"]["label"] == "6"
    assert len(printed[0]["hash"]) == 64
    assert [item["seq"] for item in rollbook("events", "math-2", "--json").json_lines] == [1]
    rest = rollbook("events", "--json", "--after", "2", "--limit", "2").json_lines
    assert [item["position"] for item in rest] == [3, 4]
    lines = rollbook("events", "math-1").out.splitlines()
    assert "attempt_ended" in lines[2] and "outcome=lost" in lines[2]
    assert all(len(line) < 400 and "math-1" not in line for line in lines)


def test_last_events_and_types_can_be_chosen(rollbook: CommandLine, writer: make.Writing) -> None:
    finished(writer)

    def printed(*options: str) -> list[tuple[str, int]]:
        return [(item["rollout_id"], item["seq"]) for item in rollbook("events", "--json", *options).json_lines]

    every = printed()
    assert printed("--tail", "3") == every[-3:]
    assert printed("--tail", "1000") == every
    assert printed("--tail", "0") == []
    assert printed("math-1", "--tail", "2") == [item for item in every if item[0] == "math-1"][-2:]
    assert printed("--type", "rollout_admitted") == [("math-1", 1), ("math-2", 1)]
    assert printed("--type", "rollout_admitted", "--tail", "1") == [("math-2", 1)]
    assert printed("--type", "attempt_started", "--type", "attempt_ended", "--limit", "2") == [
        ("math-1", 2),
        ("math-1", 3),
    ]
    assert printed("math-2", "--type", "attempt_started") == []
    refused = rollbook("events", "--type", "odd")
    assert refused.code == 2
    assert "rollout_finished" in refused.error_line


async def answered(database_url: str) -> tuple[Any, Any]:
    """The rollouts and the events as the HTTP routes have them."""
    ledger = await Ledger.open(database_url)
    try:
        rollouts = await rollouts_page(ledger, RolloutsQuery())
        events = await events_page(ledger, after=0, limit=1_000)
    finally:
        await ledger.close()
    return json.loads(json_bytes(rollouts))["rollouts"], json.loads(json_bytes(events))["events"]


def test_command_line_and_http_show_the_same_objects(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    finished(writer)
    writer.batch(make.claim())
    writer.batch(make.finish("math-2", status="failure", err_message="late", err_category="timeout", rewards=()))
    rollouts, events = asyncio.run(answered(database_url))
    assert (rollouts[0]["err_category"], rollouts[0]["err_message"]) == ("timeout", "late")
    assert rollbook("rollouts", "--json").json_lines == rollouts
    assert rollbook("events", "--json").json_lines == events
    shown = rollbook("show", "math-1", "--json").json
    assert {name: shown[name] for name in rollouts[1]} == rollouts[1]


def test_more_events_than_a_page_are_printed_whole(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.batch(*(make.admit(f"r-{n}") for n in range(1_203)))
    assert len(rollbook("events", "--json").json_lines) == 1_203
    assert len(rollbook("rollouts", "--json", "--limit", "1100").json_lines) == 1_100


def test_rollout_that_does_not_exist_is_an_error_with_the_next_step(
    rollbook: CommandLine, writer: make.Writing
) -> None:
    for command in ("show", "events"):
        refused = rollbook(command, "nobody")
        assert (refused.code, refused.out) == (1, "")
        assert refused.error_line == "no rollout 'nobody'; list what there is with `rollbook rollouts`"


@pytest.fixture
def following(database_url: str, writer: make.Writing) -> Iterator[subprocess.Popen[str]]:
    writer.batch(make.admit("before"))
    process = start("events", "--follow", "--json")
    assert process.stdout is not None
    assert '"before"' in process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_shows_events_as_they_arrive_and_ends_cleanly(
    following: subprocess.Popen[str], writer: make.Writing, number: signal.Signals
) -> None:
    assert following.stdout is not None
    for n in range(3):
        writer.batch(make.admit(f"after-{n}"))
        assert f'"after-{n}"' in following.stdout.readline()
    following.send_signal(number)
    assert outcome(following) == Outcome(0, "", "")


def test_following_from_the_end_goes_on_with_events_of_a_type(database_url: str, writer: make.Writing) -> None:
    writer.batch(make.scheduler(), make.admit("first"), make.admit("second"))
    writer.batch(make.claim())
    process = start("events", "--follow", "--json", "--tail", "1", "--type", "attempt_started", "--limit", "2")
    assert process.stdout is not None
    assert '"second"' in process.stdout.readline()
    writer.batch(make.finish("first"), make.admit("third"))
    writer.batch(make.claim())
    (event,) = outcome(process).json_lines
    assert (event["rollout_id"], event["type"]) == ("third", "attempt_started")


def test_following_ends_when_nobody_reads_any_more(following: subprocess.Popen[str]) -> None:
    assert following.stdout is not None
    following.stdout.close()
    assert following.wait(60) == 0
    assert following.stderr is not None
    assert following.stderr.read() == ""


def test_output_into_a_closed_pipe_is_no_error(database_url: str, writer: make.Writing) -> None:
    writer.batch(*(make.admit(f"r-{n}") for n in range(2_000)))
    process = start("events", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
