"""`rollbook doctor`: what it says, and with which exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.ledger.database import database_of
from rollbook.ledger.urls import SQLITE, parse_url
from tests.support import ledger as make
from tests.support.commands import CommandLine

BACKEND = """
from rollbook import ExecutionBackend
from rollbook.backends.errors import MachineError

class Own(ExecutionBackend):
    async def execute(self, request):
        raise NotImplementedError

"""


def test_each_subject_is_a_line_and_each_fix_is_below_it(rollbook: CommandLine, database_url: str) -> None:
    with make.writing(database_url) as writer:
        writer.do(make.admit())
    told = rollbook("doctor")
    assert (told.code, told.err) == (1, "")
    lines = told.out.splitlines()
    at = next(
        index for index, line in enumerate(lines) if line.startswith(f"FIX   queue {make.QUEUE}: 1 rollouts wait")
    )
    assert lines[at + 1] == f"      -> start one: `rollbook scheduler ENTRYPOINT --queue {make.QUEUE}`"
    assert any(line.startswith("ok    schema: revision") for line in lines)
    assert "to fix" in lines[-1]


def test_json_has_every_diagnosis(rollbook: CommandLine, database_url: str) -> None:
    told = rollbook("doctor", "--json")
    assert told.json["ledger"] == database_of(parse_url(database_url)).describe()
    levels = {found["subject"]: found["level"] for found in told.json["diagnoses"]}
    assert levels["schema"] == levels["guards"] == levels["secret key"] == "ok"
    assert told.json["well"] == ("error" not in levels.values())
    assert told.code == (0 if told.json["well"] else 1)


@pytest.mark.parametrize("database", [SQLITE], indirect=False)
def test_a_ledger_that_is_well_is_told_so(rollbook: CommandLine, database: str) -> None:
    told = rollbook("doctor")
    assert told.code == 0
    assert "FIX" not in told.out


@pytest.mark.parametrize("database", [SQLITE], indirect=False)
def test_entrypoint_that_can_run_here_is_told_so(rollbook: CommandLine, database: str, tmp_path: Path) -> None:
    (tmp_path / "sound.py").write_text(f"print('loading')\n{BACKEND}backend = Own()\n")
    told = rollbook("doctor", "--json", f"{tmp_path}/sound.py:backend")
    [found] = [found for found in told.json["diagnoses"] if found["subject"] == "entrypoint"]
    assert (found["level"], told.code) == ("ok", 0)
    assert "this machine has what its Own needs" in found["text"]


@pytest.mark.parametrize("database", [SQLITE], indirect=False)
def test_entrypoint_that_this_machine_cannot_run_is_a_fix(rollbook: CommandLine, database: str, tmp_path: Path) -> None:
    place = tmp_path / "lacking.py"
    check = "    async def check(self):\n        raise MachineError('no bubblewrap; install it')\n"
    place.write_text(f"{BACKEND}{check}backend = Own()\n")
    told = rollbook("doctor", f"{place}:backend")
    assert told.code == 1
    assert f"FIX   entrypoint: {place}:backend: this machine cannot run it: no bubblewrap\n" in told.out
    assert "      -> install it\n" in told.out


def test_a_ledger_that_is_not_there_is_a_fix_and_no_error(empty_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    told = CommandLine(empty_url, capfd)("doctor", "--database-url", empty_url)
    assert (told.code, told.err) == (1, "")
    assert "rollbook db upgrade" in told.out
