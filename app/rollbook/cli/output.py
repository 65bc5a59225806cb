"""What commands print: JSON lines for programs, text for people, both through one sink.

Text that users chose (ids, labels, error messages) can hold anything; people see its control characters escaped, so
that no record can move a terminal's cursor. JSON goes out as it is.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from datetime import UTC, datetime

import msgspec

from rollbook.ledger import codec

UNBOUNDED_WIDTH = 1_000_000
"""Columns of a pipe: nothing is wrapped or cut there."""

SQLITE_EPOCH_MS = 210_866_760_000_000
"""The Unix epoch in milliseconds as SQLite counts them."""

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
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):  # the latter: a terminal that was closed
            raise
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


def on_terminal() -> bool:
    """Whether a person looks at stdout as it is written."""
    return sys.stdout.isatty()


def width() -> int:
    """How many columns a line may have."""
    return shutil.get_terminal_size().columns if on_terminal() else UNBOUNDED_WIDTH


def time_text(at_us: int | None) -> str:
    """Microseconds since the epoch as a time in UTC, the same as the SQL views show; empty for None."""
    if at_us is None:
        return ""
    at = datetime.fromtimestamp(_milliseconds(at_us) // 1_000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{_milliseconds(at_us) % 1_000:03d}Z"


def moment_text(at_us: int | None) -> str:
    """`time_text`, on a terminal without today's date."""
    text = time_text(at_us)
    return text.removeprefix(f"{datetime.now(UTC):%Y-%m-%d} ") if on_terminal() else text


def _milliseconds(at_us: int) -> int:
    # As SQLite rounds, to the last bit: its times are doubles of milliseconds since 4714 BC.
    return int(at_us / 1_000_000 * 1_000.0 + SQLITE_EPOCH_MS + 0.5) - SQLITE_EPOCH_MS


def duration_text(started_at_us: int, ended_at_us: int) -> str:
    """A duration in seconds; below one second in milliseconds."""
    milliseconds = (ended_at_us - started_at_us) / 1_000
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1_000:.3f} s"
