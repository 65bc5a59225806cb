"""Stubs: what stands in the ledger for a rollout whose events are archived, and how stubs are sealed together."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct
from typing import Any

import msgspec

NO_STUBS = bytes(32)
"""The digest of an archive before its first stub."""

_FACTS = Struct(">QIQQ")


class Stub(msgspec.Struct, frozen=True, gc=False):
    """One rollout's: its events had the seqs from 1 to ``seq``, which is also their number; the last one's hash is
    ``head``, which seals all of them."""

    number: int
    seq: int
    head: bytes
    first_position: int
    last_position: int


def stub_of(row: Sequence[Any]) -> Stub | None:
    """The stub of a row of `STUB_COLUMNS`; None where it holds what no stub does."""
    number, _, seq, head, first, last, *_ = row
    whole = all(isinstance(value, int) and value > 0 for value in (number, seq, first, last))
    if not whole or not isinstance(head, bytes) or seq >= 2**32:
        return None
    return Stub(number, seq, head, first, last)


class Tally(msgspec.Struct):
    """What stubs add up to, taken in the order of their rollouts' numbers."""

    rollouts: int = 0
    events: int = 0
    digest: bytes = NO_STUBS

    def add(self, stub: Stub) -> None:
        """Take in one more."""
        self.rollouts += 1
        self.events += stub.seq
        facts = _FACTS.pack(stub.number, stub.seq, stub.first_position, stub.last_position)
        self.digest = sha256(self.digest + facts + stub.head).digest()


class Archived(msgspec.Struct, frozen=True):
    """Where a rollout's events are: the archive's id and the name of its file when it was made."""

    archive_id: str
    file: str

    def __str__(self) -> str:
        return f"{self.file} (archive {self.archive_id})"


SELECT_ARCHIVED = (
    "SELECT a.archive_id, a.file FROM archived_rollouts s JOIN archives a ON a.archive_id = s.archive_id"
    " WHERE s.number = ?"
)
STUB_COLUMNS = ("number", "archive_id", "seq", "head", "first_position", "last_position", "archiving")
