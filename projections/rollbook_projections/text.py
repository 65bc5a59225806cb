"""The one way free text enters a queryable column."""

from __future__ import annotations

MAX_TEXT_BYTES = 8_192


def column_text(value: str | None) -> str | None:
    """``value`` as every database and shell can show it: NUL and lone surrogates replaced, cut at 8 KiB of UTF-8."""
    if value is None:
        return None
    if len(value) * 4 <= MAX_TEXT_BYTES and value.isascii() and "\x00" not in value:
        return value
    text = value.replace("\x00", "\ufffd")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        # By way of UTF-16, where two surrogates side by side are one character as they are in JSON: a column written
        # from the event as it came and one written from its stored payload must be the same.
        data = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
    return data[:MAX_TEXT_BYTES].decode("utf-8", "ignore")
