"""The file of an archive: compressed JSON lines. A head, then one line for each event, then what they add up to.

An event's line is what `rollbook events --json` prints, rollout by rollout in the order of their numbers. Its payload
has the very bytes that were hashed; where JSON cannot give them back from inside a line, the line has them as a string.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from rollbook.ledger import chain
from rollbook.ledger.listing import EventView

from .stubs import Stub, Tally

FORMAT = "rollbook archive 1"
COMPRESSION = 6


class ArchiveDamaged(Exception):
    """The file is no archive, or not the one that was written; the message says where it differs."""


class Head(msgspec.Struct, frozen=True):
    """The first line: which archive this is, and of rollouts that ended before when (microseconds, UTC)."""

    format: str
    archive_id: str
    before_at: int
    made_at: int


class Tail(msgspec.Struct, frozen=True):
    """The last line: what all stubs add up to."""

    rollouts: int
    events: int
    digest: str


class FiledRollout(msgspec.Struct, frozen=True):
    """A rollout as it lies in a file, its chain found whole."""

    rollout_id: str
    stub: Stub


EventRow = tuple[int, int, int, str, int, int, bytes, bytes]
"""Position, number, seq, type, version, recorded_at, payload, hash."""

_encode = msgspec.json.Encoder().encode
_read_event = msgspec.json.Decoder(EventView).decode


class ArchiveWriter:
    """Writes one archive into an open file; what is no whole chain is refused."""

    def __init__(self, sink: IO[bytes], head: Head) -> None:
        self.tally = Tally()
        self._out = gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=sink, mtime=0)
        self._out.write(_encode(head) + b"\n")

    def begin(self, number: int, rollout_id: str) -> None:
        """The next events are this rollout's, from its first on."""
        self._rollout = ChainReader(number, rollout_id)

    def add(self, rows: Sequence[EventRow]) -> None:
        """Write the next events.

        Raises:
            ArchiveDamaged: they do not follow from what was written before.
        """
        rollout = self._rollout
        lines = []
        for position, number, seq, kind, version, recorded_at, payload, digest in rows:
            rollout.add(position, number, seq, kind, version, recorded_at, payload, digest)
            event = EventView(
                position,
                number,
                rollout.rollout_id,
                seq,
                kind,
                version,
                recorded_at,
                digest.hex(),
                msgspec.Raw(payload),
            )
            lines.append(_line(event, payload))
        self._out.write(b"".join(lines))

    def end(self, *, seq: int, head: bytes) -> None:
        """The rollout is written; its row says where it ends.

        Raises:
            ArchiveDamaged: it ends elsewhere.
        """
        stub = self._rollout.stub()
        if (stub.seq, stub.head) != (seq, head):
            raise ArchiveDamaged(f"rollout {self._rollout.rollout_id!r}: its events end at seq {stub.seq}, not {seq}")
        self.tally.add(stub)

    def close(self) -> None:
        """Write the last line and everything that is still held back."""
        tail = Tail(self.tally.rollouts, self.tally.events, self.tally.digest.hex())
        self._out.write(_encode(tail) + b"\n")
        self._out.close()

    def let_go(self) -> None:
        """Hold nothing back any more, of an archive that is whole or never will be; the sink may fail now."""
        with contextlib.suppress(OSError):
            self._out.close()


class ChainReader:
    """One rollout's events, taken in one by one."""

    def __init__(self, number: int, rollout_id: str) -> None:
        self.number = number
        self.rollout_id = rollout_id
        self._seq = 0
        self._hash = chain.GENESIS
        self._first = self._last = 0

    def add(
        self,
        position: int,
        number: int,
        seq: int,
        kind: str,
        version: int,
        recorded_at: int,
        payload: bytes,
        digest: bytes,
    ) -> None:
        """Take the next event in.

        Raises:
            ArchiveDamaged: it does not follow.
        """
        where = f"rollout {self.rollout_id!r}, seq {seq}, position {position}"
        if number != self.number or seq != self._seq + 1 or position <= self._last:
            raise ArchiveDamaged(f"{where}: it does not follow seq {self._seq}, position {self._last}")
        if chain.link(self._hash, number, seq, kind, version, recorded_at, payload) != digest:
            raise ArchiveDamaged(f"{where}: its hash does not fit: this event or the hash before it was altered")
        self._first = self._first or position
        self._seq, self._hash, self._last = seq, digest, position

    def stub(self) -> Stub:
        """What stands for the events so far."""
        return Stub(self.number, self._seq, self._hash, self._first, self._last)


class ArchiveFile:
    """An archive to read, once from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        """Raises:
        ArchiveDamaged: it is no archive.
        OSError: it cannot be read.
        """
        self.path = path
        self.tally = Tally()
        """What the rollouts read so far add up to."""
        self._file = gzip.GzipFile(path, "rb")
        self._lines = self._all_lines()
        try:
            self.head = msgspec.json.decode(next(self._lines, b""), type=Head)
        except msgspec.DecodeError as error:
            self.close()
            raise ArchiveDamaged(f"{path} is no archive of Rollbook: {error}") from error
        if self.head.format != FORMAT:
            self.close()
            raise ArchiveDamaged(f"{path} says that it is a {self.head.format!r}; this Rollbook reads {FORMAT!r}")

    def rollouts(self) -> Iterator[FiledRollout]:
        """All rollouts, in the order of their numbers. When it ends, the whole file was found sound.

        Raises:
            ArchiveDamaged: a chain, the order, or the sum of all is not what was written.
        """
        rollout: ChainReader | None = None
        line = b""
        for following in self._lines:
            if line:
                event, payload = self._event(line)
                if rollout is None or event.number != rollout.number:
                    if rollout is not None:
                        if event.number < rollout.number:
                            raise ArchiveDamaged(f"{self.path}: number {event.number} comes after {rollout.number}")
                        yield self._whole(rollout)
                    rollout = ChainReader(event.number, event.rollout_id)
                rollout.add(
                    event.position,
                    event.number,
                    event.seq,
                    event.type,
                    event.version,
                    event.recorded_at,
                    payload,
                    bytes.fromhex(event.hash),
                )
                if event.rollout_id != rollout.rollout_id:
                    raise ArchiveDamaged(f"{self.path}: number {event.number} has two ids")
            line = following
        if rollout is not None:
            yield self._whole(rollout)
        try:
            tail = msgspec.json.decode(line, type=Tail)
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(f"{self.path} ends too early: its last line is missing") from error
        if tail != Tail(self.tally.rollouts, self.tally.events, self.tally.digest.hex()):
            raise ArchiveDamaged(f"{self.path}: its last line does not sum up its events; something was taken or added")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _whole(self, rollout: ChainReader) -> FiledRollout:
        stub = rollout.stub()
        self.tally.add(stub)
        return FiledRollout(rollout.rollout_id, stub)

    def _event(self, line: bytes) -> tuple[EventView, bytes]:
        try:
            event = _read_event(line)
            payload = bytes(event.payload)
            if payload[:1] == b'"':
                payload = msgspec.json.decode(payload, type=str).encode()
            bytes.fromhex(event.hash)
        except (ValueError, RecursionError) as error:
            raise ArchiveDamaged(
                f"{self.path}: after {self.tally.events} events a line is no event: {error}"
            ) from error
        return event, payload

    def _all_lines(self) -> Iterator[bytes]:
        try:
            yield from cast("Iterator[bytes]", self._file)
        except (OSError, EOFError, zlib.error) as error:
            raise ArchiveDamaged(f"{self.path} cannot be read: {error}") from error


def sha256_of(path: Path) -> bytes:
    """The digest of a whole file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").digest()


def _line(event: EventView, payload: bytes) -> bytes:
    line = _encode(event)
    if not _gives_back(line, payload):
        line = _encode(msgspec.structs.replace(event, payload=msgspec.Raw(_encode(payload.decode()))))
    return line + b"\n"


def _gives_back(line: bytes, payload: bytes) -> bool:
    """Whether a reader of the line gets the payload's exact bytes."""
    if b"\n" in line or payload[:1] == b'"':
        return False
    try:
        read: Any = _read_event(line)
    except (ValueError, RecursionError):
        return False
    return bytes(read.payload) == payload
