"""A copy of a ledger's file while it is written: as it stood at one moment, checked, and whole or not there."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import cast

import msgspec
import sqlalchemy as sa

from rollbook.ledger.files import FileRefused, publish, sole_writer, unfinished_path
from rollbook.ledger.refusals import LedgerUnavailable

from .engines import reader_engine
from .snapshot import snapshot

_BESIDE = ("-journal", "-wal", "-shm")
"""What one that was killed may have left, and what must not be taken for a part of this one."""


class Copied(msgspec.Struct, frozen=True):
    """What the copy holds."""

    size_bytes: int
    position: int
    events: int


def backup(url: sa.URL, to: Path) -> Copied:
    """Copy the ledger to a file that is not there yet. Writers go on meanwhile.

    Raises:
        FileRefused: the file is there, or being written; or the copy is not sound, since the ledger is not.
        LedgerUnavailable: the ledger cannot be read.
        OSError: the file cannot be written.
    """
    to = to.absolute()
    with sole_writer(to) as descriptor:
        if to.exists():
            raise FileRefused(f"{to} is there already; name another file")
        os.ftruncate(descriptor, 0)
        unfinished = unfinished_path(to)
        _clear_beside(unfinished)
        try:
            _copy(url, unfinished)
            head = _checked(unfinished)
        finally:
            _clear_beside(unfinished)
        publish(descriptor, to)
        return Copied(to.stat().st_size, *head)


def _clear_beside(path: Path) -> None:
    for rest in _BESIDE:
        path.with_name(path.name + rest).unlink(missing_ok=True)


def _copy(url: sa.URL, to: Path) -> None:
    engine = reader_engine(url)
    try:
        source = engine.raw_connection()
        target = sqlite3.connect(to)
        try:
            target.execute("PRAGMA journal_mode=OFF")  # nothing is there to go back to
            # All pages in one step, which sees one state of the ledger: smaller ones begin anew whenever it is written.
            cast("sqlite3.Connection", source.driver_connection).backup(target)
        finally:
            target.close()
            source.invalidate()
    except (sqlite3.Error, sa.exc.DBAPIError) as error:
        raise LedgerUnavailable(f"the ledger cannot be copied now: {error}; check the disk and the file") from error
    finally:
        engine.dispose()


def _checked(path: Path) -> tuple[int, int]:
    """Last position and number of events of a copy that is sound.

    Raises:
        FileRefused: it is not.
    """
    wrong: list[str] = []
    position = events = 0
    try:
        with snapshot(sa.URL.create("sqlite", database=str(path))) as copy:
            wrong += copy.damage()
            wrong += (f"trigger {name} is missing or changed" for name in copy.missing_guards())
            ((position, events),) = copy.rows("SELECT position, events FROM ledger_head")
    except LedgerUnavailable as error:
        wrong.append(str(error.__cause__ or error))
    if wrong:
        raise FileRefused(f"the copy is not sound: {wrong[0]}; no file was made, look with `rollbook audit verify`")
    return position, events
