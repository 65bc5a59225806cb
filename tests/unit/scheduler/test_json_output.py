"""What user code prints and logs in JSON: every line an object, scrubbed, and with the rollout it is about."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rollbook.logformat import about
from rollbook.scheduler.runner.logs import SecretRegistry, log_scrubbed, running_about, scrub_streams
from rollbook.settings import LOG_FORMAT_VARIABLE

SECRET = 'sk-"quoted"-0123456789'


@pytest.fixture(autouse=True)
def level_of_the_root() -> Iterator[None]:
    """Put back as it was."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


class Runner:
    """The standard streams of a runner that logs JSON."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.secrets = SecretRegistry()
        self._stream = io.StringIO()
        monkeypatch.setenv(LOG_FORMAT_VARIABLE, "json")
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(sys, "stdout", self._stream)
        monkeypatch.setattr(sys, "stderr", self._stream)
        log_scrubbed(self.secrets, process="runner", stream=sys.stderr)
        scrub_streams(self.secrets)

    def lines(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in self._stream.getvalue().splitlines()]


@pytest.fixture
def running() -> Iterator[None]:
    token = running_about.set(about("r-1", attempt=2, scheduler="s-1"))
    yield
    running_about.reset(token)


@pytest.mark.usefixtures("running")
def test_printed_lines_are_objects_with_their_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(monkeypatch)
    print("one\ntwo")
    print("three", file=sys.stderr)
    found = [(line["message"], line["logger"], line["rollout_id"], line["attempt"]) for line in runner.lines()]
    assert found == [
        ("one", "stdout", "r-1", 2),
        ("two", "stdout", "r-1", 2),
        ("three", "stderr", "r-1", 2),
    ]


@pytest.mark.usefixtures("running")
def test_logged_records_are_objects_with_their_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(monkeypatch)
    logging.getLogger("flow").warning("step %d", 3)
    (line,) = runner.lines()
    assert (line["message"], line["level"], line["logger"]) == ("step 3", "WARNING", "flow")
    assert (line["rollout_id"], line["attempt"], line["scheduler"]) == ("r-1", 2, "s-1")


@pytest.mark.usefixtures("running")
async def test_tasks_and_threads_of_a_rollout_log_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(monkeypatch)

    async def inner() -> None:
        await asyncio.to_thread(logging.getLogger("flow").warning, "from a thread")

    await asyncio.create_task(inner())
    (line,) = runner.lines()
    assert line["rollout_id"] == "r-1"


def test_lines_of_no_rollout_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(monkeypatch)
    print("loading")
    (line,) = runner.lines()
    assert "rollout_id" not in line


def test_a_secret_that_json_would_escape_is_scrubbed_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(monkeypatch)
    runner.secrets.add(1, ((SECRET, "[llm_api_key]"),))
    print("key", SECRET)
    sys.stdout.write(f"piece {SECRET}")
    sys.stdout.flush()
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("flow").exception("cannot use %s", SECRET, stack_info=True)
    printed, piece, logged = runner.lines()
    assert printed["message"] == "key [llm_api_key]"
    assert piece["message"] == "piece [llm_api_key]"
    assert logged["message"] == "cannot use [llm_api_key]"
    assert logged["exception"].endswith("ValueError: [llm_api_key]")
    assert "quoted" not in str(runner.lines())
