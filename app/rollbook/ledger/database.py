"""What the ledger needs of a database, and the choice of one by URL. Where databases differ, they declare it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from rollbook_projections import Row

from .batch import Committed
from .commands import Command
from .diagnosis import Diagnosis
from .statements import Dialect
from .urls import POSTGRES

Landed = Callable[[Committed | BaseException], None]
Take = Callable[[], list[Command[Any]]]


class Capabilities(msgspec.Struct, frozen=True):
    """In what the databases differ; everything else is the same on both, and one suite of tests holds them to it."""

    migrates_at_start: bool
    """Whether a process brings the schema up to date by itself, or refuses to start on an old one."""
    makes_its_key: bool
    """Whether a secret key is made where none is set, or start is refused."""
    many_hosts: bool
    """Whether processes on several machines share the ledger, on the database's clock instead of the host's."""
    checks_pages: bool
    """Whether `audit verify` looks at the database's own pages too."""


class Committer(Protocol):
    """Carries batches out, one at a time."""

    def start(self, landed: Landed) -> None:
        """Begin, on the running loop; ``landed`` is called on it with what became of each batch."""

    def commit(self, take: Take) -> None:
        """Carry a batch out; ``landed`` tells how it went, perhaps before this returns.

        ``take`` gives the batch, and ends its gathering: it is called on the loop, once, and as late as the database
        allows. It is not called at all where nothing can be written.
        """

    def guard_leases(self, silence_us: int) -> None:
        """From now on this is an API's writer: its commands prove that an API is alive.

        When it wrote nothing for ``silence_us`` (a full disk, a stalled process), its next batch first extends all
        live leases: they could not be renewed meanwhile. The API's beats must come more often than that.
        """

    def stop_guarding(self) -> None:
        """The API takes no more requests: what this writer still does says nothing about leases any more."""

    async def close(self) -> None:
        """Give everything back; no batch is under way."""


class Reads(Protocol):
    """Reads of one process; parameters are marked `?`."""

    async def query(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a short read.

        Raises:
            LedgerUnavailable: the database cannot be read.
        """

    async def long_query(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a long read, which keeps short ones waiting on no account.

        Raises:
            LedgerUnavailable: the database cannot be read, or too many long reads are under way.
        """

    def at_one_moment(self) -> AbstractAsyncContextManager[Reads]:
        """Reads that all see the ledger as it stands when the first of them is made."""

    async def close(self) -> None:
        """Close all connections."""


class Hints(Protocol):
    """How the processes of a ledger tell each other to look, and how often to look without being told."""

    async def start(self, hinted: Callable[[], None]) -> None:
        """Begin; ``hinted`` is called when somebody says that there is something to see."""

    def tell(self) -> None:
        """Something was committed that another process may wait for. Never waits, never fails."""

    @property
    def pause_sec(self) -> float:
        """How long not to look while nobody says anything."""

    async def changed(self) -> bool:
        """Whether it looks as if something was committed since the last call; True where looking is the only way."""

    async def close(self) -> None:
        """Stop listening."""


class Stream(Protocol):
    """Rows of one statement in the order of its key."""

    def fetch(self, count: int) -> list[Row]:
        """The next rows, ``count`` if there are so many."""


class Snapshot(Protocol):
    """The ledger at one moment, for whole passes over it; blocking calls."""

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a short statement."""

    def stream(self, table: str, columns: Sequence[str], key: Sequence[str]) -> Stream:
        """All rows of a table, by its key, whose columns are the first ones."""

    def audited_events(self, after: int, limit: int) -> list[Row]:
        """The next events after a position, for the audit: position, number, seq, type, version, time, payload, hash,
        whether each has its column's type, and id, seq and head of its rollout. Texts are bytes."""

    def events_of(self, numbers: Sequence[int], *, after: tuple[int, int], limit: int) -> list[Row]:
        """The next events of some rollouts after one of them (number and seq), in that order, with all their columns;
        payloads are bytes."""

    def damage(self) -> Iterator[str]:
        """What the database itself finds wrong with its pages; nothing where it has no such check."""

    def missing_guards(self) -> Iterator[str]:
        """The names of triggers that should keep events as they are and do not."""


class Turn(Protocol):
    """One short write transaction."""

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a statement."""

    def change(self, text: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows a statement changed."""

    def change_all(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """A statement for each of these parameters."""


class Upkeep(Protocol):
    """A connection for changes beside the commands, made in turns so that writers are never held up for long."""

    def turn(self) -> AbstractContextManager[Turn]:
        """A transaction: committed at the block's end, undone where that fails.

        Raises:
            LedgerUnavailable: nothing was changed; or the database does not tell whether it was.
        """


class Database(Protocol):
    """One ledger's database."""

    url: sa.URL
    capabilities: Capabilities

    @property
    def retries(self) -> int:
        """How often a transaction or a read was tried again because its connection failed."""

    @property
    def dialect(self) -> Dialect:
        """How it says what databases say differently."""

    def describe(self) -> str:
        """The ledger's place as an operator knows it, without a password."""

    def clock(self) -> int:
        """The time that leases are judged by, in microseconds."""

    def skew_us(self) -> int:
        """How far that clock is ahead of this host's, in microseconds."""

    @property
    def key_file(self) -> Path | None:
        """Where the secret key lies that is made if the environment has none; None where none is made."""

    def check_up(self) -> AsyncIterator[Diagnosis]:
        """How the database itself is: `database` first, and alone where it cannot be used."""

    def committer(self) -> Committer:
        """A writer for this process."""

    def reads(self) -> Reads:
        """The reads of this process."""

    def hints(self, reads: Reads, hint_socket: socket.socket | None) -> Hints:
        """The hints of this process; ``hint_socket`` is a datagram socket to its neighbours, if it has one."""

    async def greet(self) -> None:
        """See that the database can be used by this process, before anything else.

        Raises:
            LedgerUnavailable: it cannot be reached, or not in the way that is needed; the message says what to change.
        """

    def check_writable(self) -> None:
        """Write something and take it back.

        Raises:
            LedgerUnavailable: the database cannot be written now.
        """

    def revision(self) -> str | None:
        """The schema's revision; None where there is no ledger yet.

        Raises:
            SchemaError: there is something else.
            LedgerUnavailable: it cannot be read.
        """

    def migrate(self, to: str, *, down: bool) -> None:
        """Migrate up or down to a revision, whole or not at all; others that try meanwhile wait.

        Raises:
            LedgerUnavailable: the database cannot be written.
        """

    def upkeep(self) -> AbstractContextManager[Upkeep]:
        """A connection for upkeep; blocking calls.

        Raises:
            LedgerUnavailable: it cannot be written.
        """

    def snapshot(self, *, undecoded: bool = False) -> AbstractContextManager[Snapshot]:
        """The ledger at one moment; ``undecoded`` gives texts as bytes where the database keeps damaged ones.

        Raises:
            LedgerUnavailable: it cannot be read.
        """


def database_of(url: sa.URL) -> Database:
    """The database that a parsed URL names."""
    # Imported here: a process pays for the driver of its own database only.
    if url.get_backend_name() == POSTGRES:
        from .postgres.database import PostgresDatabase

        return PostgresDatabase(url)
    from .sqlite.database import SqliteDatabase

    return SqliteDatabase(url)
