"""The hash chain: every event seals the rollout's history before it and its own bytes as stored."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct

GENESIS = bytes(32)
"""What the first event of a rollout follows."""

_ENVELOPE = Struct(">QIIQ")


def link(previous: bytes, number: int, seq: int, kind: str, version: int, recorded_at: int, payload: bytes) -> bytes:
    """SHA-256 over the previous hash, the event's envelope and its payload's exact bytes; 32 bytes.

    The type's name is closed by a NUL, which no name contains, so that no two events share one input.
    """
    envelope = _ENVELOPE.pack(number, seq, version, recorded_at)
    return sha256(b"%b%b%b\0%b" % (previous, envelope, kind.encode(), payload)).digest()
