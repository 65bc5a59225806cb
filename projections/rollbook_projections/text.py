"""The one way free text enters a queryable column."""

from __future__ import annotations

MAX_TEXT_BYTES = 8_192


def column_text(value: str | None) -> str | None:
    """``value`` as every database and shell can show it: NUL and lone surrogates replaced, cut at 8 KiB of UTF-8."""
    if value is None:
        return None
    if len(value) * 4 <= MAX_TEXT_BYTES and value.isascii() and "\x00" not in value:
        return value
    data = value.replace("\x00", "\ufffd").encode("utf-8", "replace")
    return data[:MAX_TEXT_BYTES].decode("utf-8", "ignore")
