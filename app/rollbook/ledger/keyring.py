"""Which secret keys a ledger goes by: who would seal or open with others is refused before it does any harm.

A process with a key of its own would fail all that it claims, and what it admits would fail at the others. So the
ledger remembers the fingerprints of the keys that its processes seal with, in their order; each process must hold the
newest. One that holds it too may bring in the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from rollbook_projections import Row

from .database import Database
from .secrets import KEY_VARIABLE, SecretKeyError, SecretKeys, key_is_set
from .vitals import DEAD_AFTER_US

log = logging.getLogger(__name__)

SEALED_LOOKS = 100
"""How many of the oldest and of the newest sealed secrets are tried."""
ACCEPT = "`rollbook db accept-key`"
"""What takes a key though the one before it is lost."""

KNOWN = "SELECT fingerprint FROM key_fingerprints ORDER BY generation"
_RECORD = "INSERT INTO key_fingerprints (generation, fingerprint, first_seen_at) VALUES (?, ?, ?)"
_SEALED = """
    SELECT r.rollout_id, s.sealed FROM secrets s JOIN rollouts r ON r.number = s.number ORDER BY s.number {order}
    LIMIT {limit}
"""
SEALED = tuple(_SEALED.format(order=order, limit=SEALED_LOOKS) for order in ("ASC", "DESC"))
"""Statements for the sealed secrets that are tried."""
_ALIVE = "SELECT count(*) FROM members WHERE stopped_at IS NULL AND beat_at >= ?"

type _Read = Callable[[str], Sequence[Row]]


class Tried(msgspec.Struct, frozen=True):
    """How many sealed secrets were tried, and of which rollouts they did not open."""

    count: int
    shut: tuple[str, ...]


class Accepted(msgspec.Struct, frozen=True):
    """The key that a ledger goes by from now on, and what that means for what waits and for who is alive."""

    fingerprint: str
    source: str
    changed: bool
    tried: int
    lost: int
    alive: int


def given_keys(database: Database) -> SecretKeys | None:
    """The keys that this process is given; None where it would make one.

    Raises:
        SecretKeyError: none is given where none is made, or it cannot be read.
    """
    path = database.key_file
    if path is not None and not key_is_set() and not path.exists():
        return None
    return SecretKeys.load(path)


def process_keys(database: Database) -> SecretKeys:
    """The keys to seal and to open with, once the ledger knows them. Blocking calls.

    Raises:
        SecretKeyError: there is none, or the ledger goes by another one.
        LedgerUnavailable: the database cannot be read, or not be written though the key is new to it.
    """
    keys = given_keys(database)
    with database.snapshot() as snapshot:
        known = known_keys(snapshot.rows(KNOWN))
        # Another process that starts now may have made the file meanwhile: a file is there before its key is known.
        keys = keys or given_keys(database)
        if keys is None:
            _check_that_nobody_needs_the_lost_one(
                database, sealed=bool(_sealed(snapshot.rows)), alive=bool(known and _alive(snapshot.rows, database))
            )
        elif not known:
            _check_that_it_opens(keys, try_all(keys, _sealed(snapshot.rows)))
        else:
            check_held(keys, known)
    lost = keys is None
    if keys is None:
        keys = SecretKeys.load(database.key_file)
    if keys.fingerprints[0] not in known:
        record_key(database, keys, replaces=lost)
    return keys


def accept_key(database: Database) -> Accepted:
    """Let the ledger go by this process's key, whatever it went by before. Blocking calls.

    Raises:
        SecretKeyError: there is no key, and none is made.
        LedgerUnavailable: the database cannot be written.
    """
    keys = given_keys(database) or SecretKeys.load(database.key_file)
    with database.snapshot() as snapshot:
        known = known_keys(snapshot.rows(KNOWN))
        tried = try_all(keys, _sealed(snapshot.rows))
        alive = _alive(snapshot.rows, database)
    changed = known[-1:] != [keys.fingerprints[0]]
    if changed:
        record_key(database, keys, replaces=True)
    return Accepted(keys.fingerprints[0], keys.source, changed, tried.count, len(tried.shut), alive)


def record_key(database: Database, keys: SecretKeys, *, replaces: bool = False) -> None:
    """Let the ledger go by the first of the keys: if they hold the newest so far, or else because it ``replaces`` it.

    Raises:
        SecretKeyError: they do not hold it. Others that started at the same time may have come first.
        LedgerUnavailable: the database cannot be written.
    """
    first = keys.fingerprints[0]
    with database.upkeep() as upkeep, upkeep.turn() as turn:
        known = known_keys(turn.rows(KNOWN))
        if known[-1:] == [first] or (first in known and not replaces):
            return
        if not replaces:
            check_held(keys, known)
        turn.change(_RECORD, (len(known) + 1, first, database.clock()))
    log.info("the ledger goes by the secret key %s from now on, of %s", shown(first), keys.source)


def known_keys(rows: Iterable[Row]) -> list[str]:
    """The fingerprints that `KNOWN` gives, the newest last."""
    return [str(fingerprint) for (fingerprint,) in rows]


def check_held(keys: SecretKeys, known: Sequence[str]) -> None:
    """Raises:
    SecretKeyError: the newest key of the ledger is not among these.
    """
    if known and known[-1] not in keys.fingerprints:
        raise SecretKeyError(
            f"the secret key of {keys.source} is {shown(keys.fingerprints[0])}, and this ledger's processes go by "
            f"{shown(known[-1])}; give all of them the same in {KEY_VARIABLE} (a new key is put behind the old one "
            f"everywhere first, after a comma, and before it only then), or, if {shown(known[-1])} is lost, take this "
            f"one with {ACCEPT}, and rollouts that wait fail"
        )


def try_all(keys: SecretKeys, sealed: dict[str, bytes]) -> Tried:
    """Which of these secrets, by rollout, the keys open."""
    return Tried(len(sealed), tuple(name for name, secret in sealed.items() if not _opens(keys, secret, name)))


def shown(fingerprint: str) -> str:
    """A fingerprint for people: enough of it to tell a few keys apart."""
    return fingerprint[:8]


def _sealed(read: _Read) -> dict[str, bytes]:
    return {str(name): bytes(secret) for statement in SEALED for name, secret in read(statement)}


def _alive(read: Callable[[str, Sequence[int]], Sequence[Row]], database: Database) -> int:
    count: int = read(_ALIVE, (database.clock() - DEAD_AFTER_US,))[0][0]
    return count


def _opens(keys: SecretKeys, sealed: bytes, rollout_id: str) -> bool:
    try:
        keys.open(sealed, rollout_id)
    except (SecretKeyError, ValueError, msgspec.MsgspecError):  # of another key, or damaged
        return False
    return True


def _check_that_it_opens(keys: SecretKeys, tried: Tried) -> None:
    if tried.shut:
        raise SecretKeyError(
            f"the secret key of {keys.source} does not open the secrets of {len(tried.shut)} of {tried.count} rollouts "
            f"that are not over, {tried.shut[0]!r} among them; set {KEY_VARIABLE} to the key that they were admitted "
            f"with (or add it, after a comma), or, if it is lost, take this one with {ACCEPT}, and those rollouts fail"
        )


def _check_that_nobody_needs_the_lost_one(database: Database, *, sealed: bool, alive: bool) -> None:
    if sealed:
        raise SecretKeyError(
            f"{database.key_file} is gone, and rollouts that are not over have secrets sealed with it; put it back, or "
            f"take a new one with {ACCEPT}, and those rollouts fail"
        )
    if alive:
        raise SecretKeyError(
            f"{database.key_file} is gone, and processes that run go by it; put it back, or stop them and start again"
        )
