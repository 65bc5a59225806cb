"""A check-up of a deployment through its ledger: whether it can work, and what to do where it cannot.

Every look is cheap, whatever the ledger holds: `audit verify` and `replay --verify` are the ones that read all of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import sqlalchemy as sa

import rollbook_migrations

from .database import Database, database_of
from .diagnosis import Diagnosis, doubtful, ill, well
from .keyring import ACCEPT, KNOWN, SEALED, check_held, given_keys, known_keys, shown, try_all
from .reader import Reader
from .refusals import LedgerUnavailable, SchemaError
from .schema import check_database
from .secrets import KEY_VARIABLE, SecretKeyError
from .vitals import MemberVitals, QueueVitals, alive, read_head, read_members, read_queues

LONG_WAIT_SEC = 60.0
"""A rollout that waits for longer beside free slots waits for another reason."""
REST = "look for its cause in the message, then run this again"


async def check_up(url: sa.URL) -> AsyncIterator[Diagnosis]:
    """All that can be said of the ledger and those who work on it; what rests on something ill is left out."""
    database = database_of(url)
    try:
        async for found in database.check_up():
            yield found
            if found.subject == "database" and found.level == "error":
                for wrong in _key_alone(database):
                    yield wrong
                return
        check_database(database)
    except (LedgerUnavailable, SchemaError) as error:
        says, _, fix = str(error).partition("; ")
        yield ill("schema" if isinstance(error, SchemaError) else "database", says, fix=fix or REST)
        for wrong in _key_alone(database):
            yield wrong
        return
    yield well("schema", f"revision {rollbook_migrations.HEAD}, the one this Rollbook works with")
    yield _writing(database)
    reader = Reader(database)
    try:
        for look in (_guards, _secrets, _processes, _queues):
            async for found in look(database, reader):
                yield found
    except LedgerUnavailable as error:
        yield ill("database", str(error), fix=REST)
    finally:
        await reader.close()


def _writing(database: Database) -> Diagnosis:
    try:
        database.check_writable()
    except LedgerUnavailable as error:
        return ill("writing", str(error), fix="free disk space, or let this user write the ledger, as the message says")
    return well("writing", "the ledger can be written")


async def _guards(database: Database, _: Reader) -> AsyncIterator[Diagnosis]:
    with database.snapshot() as snapshot:
        missing = sorted(snapshot.missing_guards())
    if missing:
        yield ill(
            "guards",
            f"events can be altered unnoticed: trigger {', '.join(missing)} is missing, disabled or changed",
            fix="look for altered events with `rollbook audit verify`, then restore the database from a backup",
        )
    else:
        yield well("guards", "triggers keep events as they were written")


async def _secrets(database: Database, reader: Reader) -> AsyncIterator[Diagnosis]:
    known = known_keys(await reader.query(KNOWN))
    sealed = {name: bytes(secret) for statement in SEALED for name, secret in await reader.query(statement)}
    try:
        keys = given_keys(database)
        if keys is None:
            yield _no_key_file(database, sealed=len(sealed), known=bool(known))
            return
        check_held(keys, known)
    except SecretKeyError as error:
        yield _wrong_key(error)
        return
    tried = try_all(keys, sealed)
    if tried.shut:
        yield ill(
            "secret key",
            f"it does not open the secrets of {len(tried.shut)} of {tried.count} rollouts that are not over, "
            f"{tried.shut[0]!r} among them; they fail when they are started",
            fix=f"add the key that they were admitted with to {KEY_VARIABLE}, after a comma",
        )
    else:
        says = f"it opens what it should ({tried.count} tried)" if tried.count else "it is there"
        yield well("secret key", f"{says}, {shown(keys.fingerprints[0])}")


def _key_alone(database: Database) -> Iterator[Diagnosis]:
    """What is wrong with the key itself: it can be judged without a ledger, and is needed as soon as there is one."""
    try:
        given_keys(database)
    except SecretKeyError as error:
        yield _wrong_key(error)


def _wrong_key(error: SecretKeyError) -> Diagnosis:
    says, _, fix = str(error).partition("; ")
    return ill("secret key", says, fix=fix or f"set {KEY_VARIABLE} as the processes of this ledger have it")


def _no_key_file(database: Database, *, sealed: int, known: bool) -> Diagnosis:
    if sealed:
        return ill(
            "secret key",
            f"{database.key_file} is gone, and rollouts that are not over have secrets sealed with it",
            fix=f"put it back, or take a new one with {ACCEPT}, and those rollouts fail",
        )
    if known:
        return doubtful(
            "secret key",
            f"{database.key_file} is gone",
            fix="put it back, or stop all processes and start them again: the first one makes a new one",
        )
    return well("secret key", "there is none yet; the first process to start makes one")


async def _processes(database: Database, reader: Reader) -> AsyncIterator[Diagnosis]:
    now = database.clock()
    members = await read_members(reader)
    schedulers, apis = alive(members, "scheduler", now), alive(members, "api", now)
    yield well("processes", f"{len(apis)} APIs and {len(schedulers)} schedulers are alive")
    for member in (*schedulers, *apis):
        if member.trouble:
            yield doubtful(_name(member), member.trouble, fix=f"look into the logs of process {member.pid} there")
        if member.beat_at > now:
            yield doubtful(
                _name(member),
                f"its last beat is {(member.beat_at - now) / 1_000_000:.0f} s in the future",
                fix="the clock went back; set it right, and let it be kept right (NTP)",
            )
    # A dead API is no trouble by itself: it is found out by its silence, and forgotten after a day.
    for member in members:
        if member.kind == "scheduler" and not member.alive(now):
            yield doubtful(
                _name(member),
                f"it was last heard of {member.beat_age_sec(now):.0f} s ago and did not say that it left",
                fix="nothing, if it was killed: live schedulers take its rollouts over within 25 s of its death; "
                "start one where none is alive",
            )


def _name(member: MemberVitals) -> str:
    return f"{member.kind} {member.member_id[:8]} on {member.host_name}"


async def _queues(database: Database, reader: Reader) -> AsyncIterator[Diagnosis]:
    now = database.clock()
    schedulers = alive(await read_members(reader), "scheduler", now)
    head = await read_head(reader)
    for queue in head.closed_queues:
        yield doubtful(
            "admission",
            f"it is closed for queue {queue!r}" if queue else "it is closed",
            fix=f"open it with `rollbook drain --off{f' --queue {queue}' if queue else ''}` once the work is done",
        )
    for queue_vitals in await read_queues(reader):
        for found in judge_queue(queue_vitals, [s for s in schedulers if queue_vitals.queue in s.queues], now):
            yield found
    yield well("ledger", f"{head.events} events")


def judge_queue(queue: QueueVitals, schedulers: Sequence[MemberVitals], now_us: int) -> Iterator[Diagnosis]:
    """Whether what is in a queue can go on; ``schedulers`` are the live ones that serve it."""
    if not queue.queued and not queue.running:
        return
    subject = f"queue {queue.queue}"
    since = now_us if queue.oldest_queued_at is None else queue.oldest_queued_at
    waited_sec = max(now_us - since, 0) / 1_000_000
    says = f"{queue.queued} rollouts wait and {queue.running} run"
    if queue.queued:
        says += f"; the oldest waits for {waited_sec:.0f} s"
    if not schedulers:
        yield ill(
            subject,
            f"{says}, and no live scheduler serves it",
            fix=f"start one: `rollbook scheduler ENTRYPOINT --queue {queue.queue}`",
        )
    elif not any(member.accepting for member in schedulers):
        yield doubtful(subject, f"{says}, and its schedulers are shutting down", fix="start another one")
    elif not sum(member.capacity for member in schedulers):
        yield ill(
            subject,
            f"{says}, and no runner of its schedulers has loaded its entrypoint",
            fix="look into the logs of its schedulers",
        )
    elif queue.queued and waited_sec > LONG_WAIT_SEC and any(member.free for member in schedulers):
        yield doubtful(
            subject, f"{says}, while its schedulers have free slots", fix="look into the logs of its schedulers"
        )
    else:
        yield well(subject, says)
