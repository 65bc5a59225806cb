"""The command line shell reads the views, whatever texts are in them."""

import shutil
import subprocess
import sys

import pytest

from rollbook_projections.views import VIEWS_1
from tests.support.histories import HARD_TEXTS, one_of_each_ending, texts_in_every_place
from tests.support.ledger import Writing, ledger_path


def shell(database_url: str, query: str) -> str:
    """What the command line shell prints; Python's own where the machine has no `sqlite3`."""
    command = [shutil.which("sqlite3")] if shutil.which("sqlite3") else [sys.executable, "-m", "sqlite3"]
    done = subprocess.run(
        [*map(str, command), str(ledger_path(database_url)), query], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


@pytest.mark.parametrize("name", sorted(VIEWS_1))
def test_plain_shell_reads_the_view(writer: Writing, database_url: str, name: str) -> None:
    one_of_each_ending(writer)
    assert "r-" in shell(database_url, f"SELECT * FROM {name}")


@pytest.mark.parametrize("text", HARD_TEXTS, ids=ascii)
def test_no_text_breaks_the_shell(writer: Writing, database_url: str, text: str) -> None:
    texts_in_every_place(writer, text)
    for name in VIEWS_1:
        assert "r-" in shell(database_url, f"SELECT * FROM {name}")
