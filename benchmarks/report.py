"""What a benchmark hands back: tables, floors and notes, and their forms on a terminal and in a page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

type Cell = str | float | int | None


class Table(msgspec.Struct, frozen=True):
    """Measured rows under a title; the first column names what was measured."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


class Floor(msgspec.Struct, frozen=True):
    """A bar that a measured value must reach: ``least`` for "at least", ``most`` for "at most"."""

    what: str
    value: float
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the value is on the right side of its bars."""
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def bar(self) -> str:
        """The bars in words."""
        bars = (("at least", self.least), ("at most", self.most))
        return " and ".join(f"{word} {number(bar)}{self.unit}" for word, bar in bars if bar is not None)


class Report(msgspec.Struct, frozen=True):
    """One benchmark's outcome."""

    name: str
    subject: str
    tables: tuple[Table, ...]
    floors: tuple[Floor, ...] = ()
    notes: tuple[str, ...] = ()


def number(value: Cell) -> str:
    """A cell as text: numbers with three significant digits, whole from 100 on."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of the values lie below; there must be one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return float(statistics.median(values))


def terminal(report: Report) -> str:
    """For people who watch it run: aligned columns."""
    parts = [f"== {report.name}: {report.subject}"]
    parts.extend(f"\n{table.title}\n{_aligned(table)}" for table in report.tables)
    if report.floors:
        parts.append("\nFloors")
        parts.extend(f"  {_verdict(floor)}  {floor.what}: {_measured(floor)} ({floor.bar})" for floor in report.floors)
    parts.extend(f"  {note}" for note in report.notes)
    return "\n".join(parts)


def markdown(report: Report) -> str:
    """For `docs/benchmarks.md`: a section with its tables."""
    parts = [f"## {report.name}: {report.subject}"]
    parts.extend(f"{table.title}:\n\n{_pipes(table.columns, table.rows)}" for table in report.tables)
    if report.floors:
        rows: list[tuple[Cell, ...]] = [
            (floor.what, _measured(floor), floor.bar, _verdict(floor)) for floor in report.floors
        ]
        parts.append(_pipes(("floor", "measured", "bar", "met"), rows))
    if report.notes:
        parts.append("\n".join(f"- {note}" for note in report.notes))
    return "\n\n".join(parts)


def _verdict(floor: Floor) -> Literal["yes", "NO "]:
    return "yes" if floor.met else "NO "


def _measured(floor: Floor) -> str:
    return f"{number(floor.value)}{floor.unit}"


def _aligned(table: Table) -> str:
    lines = [table.columns, *([number(cell) for cell in row] for row in table.rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    return "\n".join(
        "  "
        + "  ".join(
            _pad(text, width, left=index == 0) for index, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _pad(text: str, width: int, *, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def _pipes(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines = [list(columns), ["---", *(["---:"] * (len(columns) - 1))]]
    lines.extend([number(cell).strip() for cell in row] for row in rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
