"""Tables for people: as wide as they need in a pipe, fitted to a terminal without ever wrapping or cutting an id."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import output

GAP = 2
LEAST_WIDTH = 8
"""How far a column that may shrink does so."""

SHORT_ID = 8


class Column(msgspec.Struct, frozen=True):
    """A column and what becomes of it where the terminal is too narrow.

    ``fit`` says how it shrinks, which a column that is shown ``whole`` does not. Where that is not enough, columns
    are left out, the one with the lowest ``drop`` above 0 first. ``right`` aligns texts as numbers are.
    """

    name: str
    fit: Literal["whole", "cut", "wrap"] = "whole"
    drop: int = 0
    right: bool = False


def cut(text: str, width: int) -> str:
    """The text in so many columns; one that was longer ends in an ellipsis."""
    if len(text) <= width and cell_len(text) <= width:
        return text
    return f"{set_cell_size(text[:width], width - 1).rstrip()}…"


def cut_middle(text: str, width: int) -> str:
    """The text in so many columns; of one that was longer both ends, since either may be what tells it from others."""
    if len(text) <= width and cell_len(text) <= width:
        return text
    head = width // 2
    tail = set_cell_size(text[: -width - 1 : -1], width - head - 1)[::-1]
    return f"{set_cell_size(text[:width], head)}…{tail}"


def short(member_id: str) -> str:
    """The id of a scheduler as people tell them apart."""
    return member_id[:SHORT_ID]


def put_facts(facts: Iterable[tuple[str, str | None]]) -> None:
    """Print names with their values, one on each line; those without a value are left out."""
    known = [(name, value) for name, value in facts if value]
    broad = max(len(name) for name, _ in known)
    output.put("".join(f"{name:<{broad}}  {output.printable(value)}\n" for name, value in known))


def put_table(columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table; None is shown empty. Numbers are set to the right."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(text) for text in (column.name, *(row[index] for row in texts)))
        for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    while (least := _least(columns, widths, shown)) > output.width():
        droppable = [index for index in shown if columns[index].drop]
        if not droppable:
            break
        shown.remove(min(droppable, key=lambda index: columns[index].drop))
    table = Table(
        title=None if title is None else Text(title, style="bold"),
        title_justify="left",
        box=None,
        padding=(0, GAP, 0, 0),
        pad_edge=False,
    )
    for index in shown:
        column = columns[index]
        right = column.right or any(isinstance(row[index], int | float) for row in rows)
        table.add_column(
            Text(column.name, no_wrap=True),
            justify="right" if right else "left",
            no_wrap=column.fit == "whole",
            overflow="fold" if column.fit == "wrap" else "ellipsis",
        )
    for row in texts:
        table.add_row(*(Text(row[index], no_wrap=columns[index].fit != "wrap") for index in shown))
    output.put(_rendered(table, max(least, output.width())))


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.10g}" if isinstance(cell, float) else output.printable(str(cell))


def _least(columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int]) -> int:
    """The narrowest that a line can be."""
    needed = (
        widths[index]
        if columns[index].fit == "whole"
        else max(len(columns[index].name), min(widths[index], LEAST_WIDTH))
        for index in shown
    )
    return sum(needed) + GAP * (len(shown) - 1)


def _rendered(table: Table, width: int) -> str:
    terminal = output.on_terminal()
    sink = io.StringIO()
    console = Console(
        file=sink,
        force_terminal=terminal,
        width=width,
        no_color=not terminal or "NO_COLOR" in os.environ,
        legacy_windows=False,
    )
    console.print(table)
    lines = sink.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)
