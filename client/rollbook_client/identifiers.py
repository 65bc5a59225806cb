"""The rules for rollout ids and idempotency keys, which the client that sends them shares with the server."""

from __future__ import annotations

import re
import secrets
import time
from uuid import UUID

MAX_ROLLOUT_ID_BYTES = 1024
MAX_IDEMPOTENCY_KEY_CHARACTERS = 255
_KEY = re.compile(f"[!-~]{{1,{MAX_IDEMPOTENCY_KEY_CHARACTERS}}}")


def validate_rollout_id(rollout_id: str) -> None:
    """Refuse an id that cannot be one URL path segment.

    Anything else is legal, `a?b` and `a b` included: clients percent-encode ids.

    Raises:
        ValueError: the id is empty, `.` or `..`, contains `/`, a backslash, NUL or a lone surrogate, or is longer
            than 1,024 bytes in UTF-8.
    """
    if rollout_id in ("", ".", ".."):
        raise ValueError(f"rollout_id {rollout_id!r} is no path segment; choose a non-empty id, for example a UUID")
    if "/" in rollout_id or "\\" in rollout_id or "\x00" in rollout_id:
        raise ValueError(
            f"rollout_id {rollout_id[:80]!r} contains a slash, a backslash or NUL; replace them, for example by '-'"
        )
    try:
        size_bytes = len(rollout_id.encode())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"rollout_id {rollout_id[:80]!r} contains a lone surrogate and has no UTF-8 form; remove it"
        ) from error
    if size_bytes > MAX_ROLLOUT_ID_BYTES:
        raise ValueError(
            f"rollout_id is {size_bytes} bytes long in UTF-8; shorten it to at most {MAX_ROLLOUT_ID_BYTES} bytes"
        )


def validate_idempotency_key(key: str) -> None:
    """Refuse a key that a header cannot carry unchanged.

    Raises:
        ValueError: the key is not 1 to 255 visible ASCII characters.
    """
    if not _KEY.fullmatch(key):
        raise ValueError(
            f"idempotency key {key[:80]!r} is not 1 to {MAX_IDEMPOTENCY_KEY_CHARACTERS} visible ASCII characters; "
            "choose one that is, for example a UUID"
        )


def new_idempotency_key() -> str:
    """A key that nobody had before: a UUID of version 7.

    It begins with the time, so that keys of the same time lie side by side in a server's index.
    """
    value = (time.time_ns() // 1_000_000) << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return str(UUID(int=value))
