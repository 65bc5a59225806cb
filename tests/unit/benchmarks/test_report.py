"""How measured values become verdicts, tables and sections of the page."""

from __future__ import annotations

import pytest

from benchmarks.page import section, with_section
from benchmarks.places import Files
from benchmarks.report import Cell, Floor, Report, Table, markdown, number, percentile, terminal

REPORT = Report(
    "sample",
    "a subject",
    (Table("a title", ("what", "rate"), [("slow", 0.5), ("fast", 12_345.6)]),),
    (Floor("rate", 0.5, least=1.0, unit="/s"),),
    ("a note",),
)


@pytest.mark.parametrize(
    ("floor", "met"),
    [
        (Floor("x", 1.0, least=1.0), True),
        (Floor("x", 0.99, least=1.0), False),
        (Floor("x", 1.0, most=1.0), True),
        (Floor("x", 1.01, most=1.0), False),
        (Floor("x", 5.0, least=1.0, most=4.0), False),
    ],
)
def test_floor_is_met_on_the_right_side_of_its_bars(floor: Floor, met: bool) -> None:
    assert floor.met is met


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        ("word", "word"),
        (7, "7"),
        (12_345.6, "12,346"),
        (99.991, "99.99"),
        (0.0123, "0.0123"),
        (0.0, "0.00"),
    ],
)
def test_numbers_keep_the_digits_that_matter(value: Cell, text: str) -> None:
    assert number(value) == text


def test_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (51.0, 100.0, 100.0)


def test_terminal_aligns_columns_and_names_a_missed_floor() -> None:
    lines = terminal(REPORT).splitlines()
    assert "  slow    0.50" in lines
    assert "  fast  12,346" in lines
    assert "  NO   rate: 0.50/s (at least 1.00/s)" in lines


def test_markdown_has_a_row_for_each_measurement_and_floor() -> None:
    lines = markdown(REPORT).splitlines()
    assert "| fast | 12,346 |" in lines
    assert "| rate | 0.50/s | at least 1.00/s | NO |" in lines
    assert "- a note" in lines


def test_section_is_added_once_and_replaced_alone() -> None:
    page = with_section("# Title\n\nby hand\n", "one", "first")
    page = with_section(page, "two", "second")
    page = with_section(page, "one", r"again \1")
    assert page.count("<!-- benchmark one -->") == 1
    assert "first" not in page
    assert page.index("by hand") < page.index(r"again \1") < page.index("second")


def test_section_names_what_was_run_and_where() -> None:
    class Elsewhere(Files):
        name = "elsewhere"
        title = "Elsewhere"

        def describe(self) -> str:
            return "Elsewhere 7"

    assert section(REPORT, Files(), quick=False).startswith("## sample: a subject\n\n`python -m benchmarks sample`, ")
    text = section(REPORT, Elsewhere(), quick=True)
    assert text.startswith("## sample on Elsewhere: ")
    assert "`python -m benchmarks --database elsewhere sample --quick`, " in text
    assert text.split("\n")[2].endswith(", Elsewhere 7.")
