"""The declared tables. Migrations create them (and only migrations do); a test compares the two.

Times are microseconds since the epoch (UTC) in columns named `*_at`. Trainers' ids are mapped to a number at
admission, and everything is keyed by that number: random ids would scatter every index write.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# Compared by its bytes, as SQLite does by itself: prefixes are ranges.
_Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _position() -> sa.Column[int]:
    return sa.Column("position", _Id, primary_key=True, autoincrement=False)


def _number() -> sa.Column[int]:
    return sa.Column("number", _Id, nullable=False)


def _event_key() -> tuple[sa.Column[int], sa.Column[int]]:
    """History rows lie together by rollout and are unique by event."""
    return (
        sa.Column("number", _Id, primary_key=True, autoincrement=False),
        sa.Column("position", _Id, primary_key=True, autoincrement=False),
    )


def _time(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, _Id, nullable=nullable)


events = sa.Table(
    "events",
    metadata,
    _position(),
    _number(),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    _time("recorded_at"),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("number", "seq", name="events_number_seq"),
)

ledger_head = sa.Table(
    "ledger_head",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("position", _Id, nullable=False),
    sa.Column("number", _Id, nullable=False),
    sa.Column("events", _Id, nullable=False),
    # Not 0 while admission is closed somewhere; `drains` says where.
    sa.Column("draining", sa.Integer, server_default=sa.text("0"), nullable=False),
    # Changed by each batch: room for many versions in one page.
    postgresql_with={"fillfactor": 10},
)

rollouts = sa.Table(
    "rollouts",
    metadata,
    sa.Column("number", _Id, primary_key=True, autoincrement=False),
    sa.Column("rollout_id", _Name, nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("head", sa.LargeBinary, nullable=False),
    sa.Column("queue", _Name, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("attempts_counted", sa.Integer, nullable=False),
    sa.Column("max_attempts", sa.Integer, nullable=False),
    sa.Column("scheduler", sa.Text),
    sa.Column("lease_digest", sa.LargeBinary, nullable=False),
    sa.Column("lease_timeout_us", _Id, nullable=False),
    _time("lease_expires_at"),
    _time("cancel_requested_at", nullable=True),
    _time("admitted_at"),
    _time("queued_at"),
    sa.Column("agent_timeout_us", _Id),
    _time("agent_deadline_at", nullable=True),
    _time("changed_at"),
    _time("finished_at", nullable=True),
    sa.Column("request_position", _Id, nullable=False),
    sa.Column("result_position", _Id),
    sa.Column("err_category", sa.Text),
    sa.Column("idempotency_key", sa.Text),
    sa.UniqueConstraint("rollout_id", name="rollouts_rollout_id"),
    postgresql_with={"fillfactor": 85},
)


def _partial(name: str, where: str, *columns: sa.Column[object], unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


# What these conditions say is what the statements of the ledger must repeat word for word to use the indexes.
CLAIMABLE = "status = 'queued' AND scheduler IS NULL"
LIVE = "finished_at IS NULL"
OWNED = "scheduler IS NOT NULL"
FINISHED = "finished_at IS NOT NULL"
KEYED = "idempotency_key IS NOT NULL"

_partial("rollouts_claimable", CLAIMABLE, rollouts.c.queue, rollouts.c.number)
_partial(
    "rollouts_deadline",
    f"{CLAIMABLE} AND agent_deadline_at IS NOT NULL",
    rollouts.c.agent_deadline_at,
)
LIVE_INDEX = _partial("rollouts_live", LIVE, rollouts.c.number)
OWNED_INDEX = _partial("rollouts_owned", OWNED, rollouts.c.scheduler, rollouts.c.number)
FINISHED_INDEX = _partial("rollouts_finished", FINISHED, rollouts.c.finished_at)
_partial("rollouts_idempotency", KEYED, rollouts.c.idempotency_key, unique=True)

queue_counts = sa.Table(
    "queue_counts",
    metadata,
    sa.Column("queue", _Name, primary_key=True),
    sa.Column("queued", _Id, nullable=False),
    sa.Column("running", _Id, nullable=False),
    postgresql_with={"fillfactor": 20},
)

admissions = sa.Table(
    "admissions",
    metadata,
    *_event_key(),
    _time("at"),
    sa.Column("label", sa.Text),
    sa.Column("endpoint_origin", sa.Text),
    sqlite_with_rowid=False,
)

lease_changes = sa.Table(
    "lease_changes",
    metadata,
    *_event_key(),
    _time("at"),
    sa.Column("kind", sa.Text, nullable=False),
    _time("expires_at"),
    sa.Column("reason", sa.Text),
    sqlite_with_rowid=False,
)

attempt_starts = sa.Table(
    "attempt_starts",
    metadata,
    *_event_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    _time("at"),
    sa.Column("scheduler", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

attempt_ends = sa.Table(
    "attempt_ends",
    metadata,
    *_event_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    _time("at"),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sqlite_with_rowid=False,
)

phases = sa.Table(
    "phases",
    metadata,
    *_event_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    _time("at"),
    sa.Column("phase", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

stage_spans = sa.Table(
    "stage_spans",
    metadata,
    *_event_key(),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    _time("started_at"),
    _time("ended_at"),
    sqlite_with_rowid=False,
)

scores = sa.Table(
    "scores",
    metadata,
    *_event_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Double),
    sa.Column("weight", sa.Double),
    # 0: the attempt's own; from 1 on: given later. A process of an earlier version leaves it out.
    sa.Column("scoring", sa.Integer, server_default=sa.text("0"), nullable=False),
    sqlite_with_rowid=False,
)

# What is asked most of a rollout's scores is which scoring is the last one.
scorings = sa.Table(
    "scorings",
    metadata,
    *_event_key(),
    _time("at"),
    sa.Column("scoring", sa.Integer, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("asked_by", sa.Text, nullable=False),
    sa.Column("reward", sa.Double),
    sqlite_with_rowid=False,
)

model_calls = sa.Table(
    "model_calls",
    metadata,
    *_event_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("call", sa.Integer, nullable=False),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("model", sa.Text),
    _time("started_at"),
    _time("first_chunk_at", nullable=True),
    _time("ended_at"),
    sa.Column("streamed", sa.Integer, nullable=False),
    sa.Column("input_tokens", _Id),
    sa.Column("output_tokens", _Id),
    sa.Column("cached_input_tokens", _Id),
    sa.Column("finish_reason", sa.Text),
    sa.Column("error_kind", sa.Text),
    sa.Column("error", sa.Text),
    sqlite_with_rowid=False,
)

stops = sa.Table(
    "stops",
    metadata,
    *_event_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    _time("at"),
    sa.Column("condition", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

rewrites = sa.Table(
    "rewrites",
    metadata,
    *_event_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    _time("at"),
    sa.Column("hook", sa.Text, nullable=False),
    sa.Column("side", sa.Text, nullable=False),
    sa.Column("call", sa.Integer),
    sqlite_with_rowid=False,
)

# Where a trace is; the trace itself stays in its event.
traces = sa.Table(
    "traces",
    metadata,
    *_event_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    _time("at"),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("size_bytes", _Id, nullable=False),
    sqlite_with_rowid=False,
)

cancellations = sa.Table(
    "cancellations",
    metadata,
    *_event_key(),
    _time("at"),
    sa.Column("requested_by", sa.Text, nullable=False),
    sa.Column("selector", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

outcomes = sa.Table(
    "outcomes",
    metadata,
    *_event_key(),
    _time("at"),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("err_category", sa.Text),
    sa.Column("err_message", sa.Text),
    sqlite_with_rowid=False,
)

# Beside the ledger: no projections, but facts of now. A sealed secret goes when its rollout is over.
secrets = sa.Table(
    "secrets",
    metadata,
    sa.Column("number", _Id, primary_key=True, autoincrement=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
)

# The secret keys that processes went by, the newest last; never a key, nor what one could be found by.
key_fingerprints = sa.Table(
    "key_fingerprints",
    metadata,
    sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    _time("first_seen_at"),
)

members = sa.Table(
    "members",
    metadata,
    sa.Column("member_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("entrypoint", sa.Text),
    sa.Column("capacity", sa.Integer, nullable=False),
    _time("started_at"),
    _time("beat_at"),
    _time("stopped_at", nullable=True),
    sa.Column("accepting", sa.Integer, nullable=False),
    sa.Column("trouble", sa.Text),
    # Slots that a scheduler said last it could fill; null before it says so.
    sa.Column("free", sa.Integer),
)

member_queues = sa.Table(
    "member_queues",
    metadata,
    sa.Column("member_id", sa.Text, primary_key=True),
    sa.Column("queue", sa.Text, primary_key=True),
)

# When admission was closed (queue '': of the whole ledger) and opened again, and by whom.
drains = sa.Table(
    "drains",
    metadata,
    sa.Column("queue", sa.Text, primary_key=True),
    sa.Column("closed_at", _Id, primary_key=True, autoincrement=False),
    sa.Column("closed_by", sa.Text, nullable=False),
    _time("opened_at", nullable=True),
    sa.Column("opened_by", sa.Text),
)

# What stands for events that lie in a file: one row for each rollout, and one for each file.
archives = sa.Table(
    "archives",
    metadata,
    sa.Column("archive_id", sa.Text, primary_key=True),
    sa.Column("file", sa.Text, nullable=False),
    sa.Column("sha256", sa.LargeBinary, nullable=False),
    sa.Column("size_bytes", _Id, nullable=False),
    _time("before_at"),
    _time("made_at"),
    sa.Column("file_rollouts", _Id, nullable=False),
    sa.Column("file_events", _Id, nullable=False),
    sa.Column("rollouts", _Id, nullable=False),
    sa.Column("events", _Id, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    _time("completed_at", nullable=True),
)

archived_rollouts = sa.Table(
    "archived_rollouts",
    metadata,
    sa.Column("number", _Id, primary_key=True, autoincrement=False),
    sa.Column("archive_id", sa.Text, nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("head", sa.LargeBinary, nullable=False),
    sa.Column("first_position", _Id, nullable=False),
    sa.Column("last_position", _Id, nullable=False),
    sa.Column("archiving", sa.Integer, nullable=False),
)

HISTORY_TABLES: tuple[sa.Table, ...] = (
    admissions,
    lease_changes,
    attempt_starts,
    attempt_ends,
    phases,
    stage_spans,
    model_calls,
    stops,
    rewrites,
    traces,
    scores,
    scorings,
    cancellations,
    outcomes,
)
