"""What commands print: JSON lines for programs, tables for people, both through one sink.

Text that users chose (ids, labels, error messages) can hold anything; people see its control characters escaped, so
that no record can move a terminal's cursor. JSON goes out as it is.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollbook.ledger import codec

UNBOUNDED_WIDTH = 1_000_000
"""Columns of a pipe: nothing is wrapped or cut there."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class OutputClosed(Exception):
    """Whoever read our output has gone (`rollbook events | head`); no error."""


def put(text: str) -> None:
    """Write to stdout at once. Raises `OutputClosed` when nobody reads any more."""
    put_bytes(text.encode("utf-8", "backslashreplace"))


def put_bytes(data: bytes) -> None:
    """`put` for text that is UTF-8 already."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        # What is still buffered would be tried again when the interpreter ends, and fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputClosed from error


def json_line(value: object) -> bytes:
    """One line of JSON. `msgspec.Raw` parts are spliced in; lone surrogates become ASCII escapes."""
    try:
        return msgspec.json.encode(value) + b"\n"
    except UnicodeEncodeError:
        return codec.ascii_json(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))).encode() + b"\n"


def put_json(value: object) -> None:
    """Print one line of JSON."""
    put_bytes(json_line(value))


def printable(text: str) -> str:
    """The text with everything escaped that is no character to look at."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def time_text(at_us: int | None) -> str:
    """Microseconds since the epoch as a time in UTC; empty for None."""
    if at_us is None:
        return ""
    at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1_000:03d}Z"


def seconds_text(started_at_us: int, ended_at_us: int) -> str:
    """A duration with milliseconds."""
    return f"{(ended_at_us - started_at_us) / 1_000_000:.3f} s"


def put_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table; None is shown empty. Numbers are set to the right."""
    table = Table(title=None if title is None else Text(title, style="bold"), title_justify="left", box=None)
    for index, name in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    put(_rendered(table))


def _rendered(table: Table) -> str:
    terminal = sys.stdout.isatty()
    sink = io.StringIO()
    console = Console(
        file=sink,
        force_terminal=terminal,
        width=None if terminal else UNBOUNDED_WIDTH,
        no_color=not terminal or "NO_COLOR" in os.environ,
        legacy_windows=False,
    )
    console.print(table)
    lines = sink.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)
