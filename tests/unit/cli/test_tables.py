"""Tables on narrow terminals keep ids whole; in a pipe they keep everything."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rollbook.cli.tables import Column, cut, cut_middle, put_facts, put_table
from tests.unit.cli.terminals import terminal

COLUMNS = (
    Column("number", drop=2),
    Column("rollout"),
    Column("queue", "cut", drop=1),
    Column("label", "cut"),
    Column("took", right=True),
)
ROW = (12, "x" * 50, "multiply", "how many r are in strawberry", "417 ms")
STYLE = re.compile("\x1b\\[[0-9]*m")


def lines_on(monkeypatch: pytest.MonkeyPatch, columns: int, *rows: tuple[object, ...]) -> list[str]:
    with terminal(monkeypatch, columns=columns) as screen:
        put_table(COLUMNS, rows)
        return [STYLE.sub("", line).rstrip() for line in screen.lines()]


def test_wide_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    head, row = lines_on(monkeypatch, 120, ROW)
    assert head.split() == ["number", "rollout", "queue", "label", "took"]
    assert "x" * 50 in row and "multiply" in row and "how many r are in strawberry" in row


def test_labels_shrink_before_columns_go(monkeypatch: pytest.MonkeyPatch) -> None:
    head, row = lines_on(monkeypatch, 90, ROW)
    assert head.split() == ["number", "rollout", "queue", "label", "took"]
    assert "x" * 50 in row and "…" in row
    assert len(row) <= 90


def test_columns_go_in_their_order_before_an_id_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    head, row = lines_on(monkeypatch, 78, ROW)
    assert head.split() == ["number", "rollout", "label", "took"]
    assert len(row) <= 78
    head, row = lines_on(monkeypatch, 40, ROW)
    assert head.split() == ["rollout", "label", "took"]
    assert "x" * 50 in row


def test_each_row_is_one_line_on_any_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (20, 40, 60, 80, 100):
        assert len(lines_on(monkeypatch, columns, ROW, ROW)) == 3


def test_reasons_wrap_within_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, columns=30) as screen:
        put_table((Column("outcome"), Column("reason", "wrap")), [("lost", "its runner died of hunger")])
        lines = [STYLE.sub("", line).rstrip() for line in screen.lines()]
    assert lines[1:] == ["lost     its runner died of", "         hunger"]


def test_pipe_cuts_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    put_table(COLUMNS, [(1, "x" * 300, "q" * 300, "l" * 300, None), (2, "[red]y[/red]\x1b", "", "", "1.500 s")])
    out = capfd.readouterr().out
    assert "x" * 300 in out and "q" * 300 in out and "l" * 300 in out
    assert "[red]y[/red]\\x1b" in out
    assert len(out.splitlines()) == 3


def test_facts_without_a_value_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    put_facts([("rollout", "r-1"), ("label", None), ("chat endpoint", "https://x\n")])
    assert capfd.readouterr().out == "rollout        r-1\nchat endpoint  https://x\\n\n"


@given(st.text(), st.integers(3, 20))
def test_cut_texts_fit_and_fitting_texts_stay(text: str, width: int) -> None:
    for shortened in (cut(text, width), cut_middle(text, width)):
        assert cell_len(shortened) <= width
        if cell_len(text) <= width and len(text) <= width:
            assert shortened == text


def test_cut_in_the_middle_keeps_both_ends() -> None:
    assert cut_middle("strawberry-0c4c46ee-6796", 11) == "straw…-6796"
    assert cut_middle("straw", 5) == "straw"
