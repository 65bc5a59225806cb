"""The triggers that keep events, and what is left of archived ones, as they were written; by schema version.

Their text never changes once released: a migration that changes guards adds new dictionaries here. An audit compares
what stands in the database with them, to the letter.

Events are append-only with one exception: those of a rollout whose stub is being written. A stub is taken only for a
rollout that is over and whose last event is there; it is settled, in the same transaction, once its events are gone,
and never changes again. No setting of a session changes any of this.
"""

from __future__ import annotations

import msgspec

_ARCHIVE_FACTS = ("archive_id", "file", "sha256", "size_bytes", "before_at", "made_at", "file_rollouts", "file_events")
_STUB_FACTS = ("number", "archive_id", "seq", "head", "first_position", "last_position")

STUB_REFUSED = "only rollouts that are over and whose events are all here can be archived"
SETTLED = "what is left of archived rollouts never changes"

_STUB_FITS = (
    "NEW.archiving = 1"
    " AND EXISTS (SELECT 1 FROM rollouts r WHERE r.number = NEW.number AND r.seq = NEW.seq AND r.head = NEW.head"
    " AND r.finished_at IS NOT NULL AND r.scheduler IS NULL)"
    " AND EXISTS (SELECT 1 FROM events e WHERE e.number = NEW.number AND e.seq = NEW.seq AND e.hash = NEW.head)"
    " AND EXISTS (SELECT 1 FROM archives a WHERE a.archive_id = NEW.archive_id AND a.completed_at IS NULL)"
)
_STUB_SETTLES = (
    "OLD.archiving = 1 AND NEW.archiving = 0"
    f" AND {' AND '.join(f'NEW.{name} = OLD.{name}' for name in _STUB_FACTS)}"
    " AND NOT EXISTS (SELECT 1 FROM events e WHERE e.number = OLD.number)"
)
_ARCHIVE_NEW = (
    "NEW.rollouts = 0 AND NEW.events = 0 AND NEW.completed_at IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM archives a WHERE a.archive_id = NEW.archive_id)"
)
_ARCHIVE_GROWS = (
    "OLD.completed_at IS NULL AND NEW.rollouts >= OLD.rollouts AND NEW.events >= OLD.events"
    f" AND {' AND '.join(f'NEW.{name} = OLD.{name}' for name in _ARCHIVE_FACTS)}"
)
_BEING_ARCHIVED = "EXISTS (SELECT 1 FROM archived_rollouts a WHERE a.number = OLD.number AND a.archiving = 1)"


def _sqlite(name: str, on: str, condition: str, message: str) -> str:
    when = f" WHEN {condition}" if condition else ""
    return f"CREATE TRIGGER {name} {on}{when} BEGIN SELECT RAISE(ABORT, '{message}'); END"


SQLITE_GUARDS_2: dict[str, str] = {
    name: _sqlite(name, on, condition, message)
    for name, on, condition, message in (
        ("events_no_update", "BEFORE UPDATE ON events", "", "events are append-only: UPDATE refused"),
        (
            "events_no_delete",
            "BEFORE DELETE ON events",
            f"NOT {_BEING_ARCHIVED}",
            "events are append-only: DELETE refused",
        ),
        (
            # A replacing INSERT deletes the row it collides with without a DELETE trigger, so the insert itself is
            # checked. The newest events may be archived: the ledger's head tells where they were.
            "events_no_replace",
            "BEFORE INSERT ON events",
            "NEW.position <= (SELECT position FROM events ORDER BY position DESC LIMIT 1)"
            " OR NEW.position <= (SELECT position FROM ledger_head)"
            " OR EXISTS (SELECT 1 FROM events WHERE number = NEW.number AND seq = NEW.seq)"
            " OR EXISTS (SELECT 1 FROM archived_rollouts WHERE number = NEW.number)",
            "events are append-only: INSERT over or before an existing event refused",
        ),
        (
            "archived_rollouts_insert",
            "BEFORE INSERT ON archived_rollouts",
            f"NOT ({_STUB_FITS})",
            f"{STUB_REFUSED}: INSERT refused",
        ),
        (
            "archived_rollouts_update",
            "BEFORE UPDATE ON archived_rollouts",
            f"NOT ({_STUB_SETTLES})",
            f"{SETTLED}: UPDATE refused",
        ),
        ("archived_rollouts_delete", "BEFORE DELETE ON archived_rollouts", "", f"{SETTLED}: DELETE refused"),
        ("archives_insert", "BEFORE INSERT ON archives", f"NOT ({_ARCHIVE_NEW})", f"{SETTLED}: INSERT refused"),
        ("archives_update", "BEFORE UPDATE ON archives", f"NOT ({_ARCHIVE_GROWS})", f"{SETTLED}: UPDATE refused"),
        ("archives_delete", "BEFORE DELETE ON archives", "", f"{SETTLED}: DELETE refused"),
    )
}
"""SQLite's triggers by their names."""


class PostgresGuard(msgspec.Struct, frozen=True):
    """One trigger of PostgreSQL: its table, when it fires, for each ``ROW`` or ``STATEMENT``, and its function."""

    table: str
    events: tuple[str, ...]
    each: str
    function: str

    @property
    def type(self) -> int:
        """As `pg_trigger.tgtype` says when it fires: before, for which events, for each row or statement."""
        bits = {"INSERT": 4, "DELETE": 8, "UPDATE": 16, "TRUNCATE": 32}
        return 2 + (self.each == "ROW") + sum(bits[event] for event in self.events)

    def sql(self, name: str) -> str:
        """The statement that makes it."""
        return (
            f"CREATE TRIGGER {name} BEFORE {' OR '.join(self.events)} ON {self.table}"
            f" FOR EACH {self.each} EXECUTE FUNCTION {self.function}()"
        )


POSTGRES_FUNCTIONS_2: dict[str, str] = {
    "refuse_event_change": " BEGIN RAISE EXCEPTION 'events are append-only: % refused', TG_OP; END ",
    "guard_event_delete": (
        f" BEGIN IF {_BEING_ARCHIVED} THEN RETURN OLD; END IF;"
        " RAISE EXCEPTION 'events are append-only: % refused', TG_OP; END "
    ),
    "guard_archived_rollout": (
        f" BEGIN IF TG_OP = 'INSERT' THEN IF {_STUB_FITS} THEN RETURN NEW; END IF;"
        f" RAISE EXCEPTION '{STUB_REFUSED}: % refused', TG_OP; END IF;"
        f" IF TG_OP = 'UPDATE' THEN IF {_STUB_SETTLES} THEN RETURN NEW; END IF; END IF;"
        f" RAISE EXCEPTION '{SETTLED}: % refused', TG_OP; END "
    ),
    "guard_archive": (
        f" BEGIN IF TG_OP = 'INSERT' THEN IF {_ARCHIVE_NEW} THEN RETURN NEW; END IF; END IF;"
        f" IF TG_OP = 'UPDATE' THEN IF {_ARCHIVE_GROWS} THEN RETURN NEW; END IF; END IF;"
        f" RAISE EXCEPTION '{SETTLED}: % refused', TG_OP; END "
    ),
    "refuse_archive_truncate": f" BEGIN RAISE EXCEPTION '{SETTLED}: % refused', TG_OP; END ",
}
"""The bodies of PostgreSQL's trigger functions by their names."""

POSTGRES_GUARDS_2: dict[str, PostgresGuard] = {
    # For each statement: one that would change no row is refused too.
    "events_append_only": PostgresGuard("events", ("UPDATE",), "STATEMENT", "refuse_event_change"),
    "events_no_truncate": PostgresGuard("events", ("TRUNCATE",), "STATEMENT", "refuse_event_change"),
    "events_no_delete": PostgresGuard("events", ("DELETE",), "ROW", "guard_event_delete"),
    "archived_rollouts_guard": PostgresGuard(
        "archived_rollouts", ("INSERT", "UPDATE", "DELETE"), "ROW", "guard_archived_rollout"
    ),
    "archived_rollouts_no_truncate": PostgresGuard(
        "archived_rollouts", ("TRUNCATE",), "STATEMENT", "refuse_archive_truncate"
    ),
    "archives_guard": PostgresGuard("archives", ("INSERT", "UPDATE", "DELETE"), "ROW", "guard_archive"),
    "archives_no_truncate": PostgresGuard("archives", ("TRUNCATE",), "STATEMENT", "refuse_archive_truncate"),
}
"""PostgreSQL's triggers by their names."""


def postgres_function_sql(name: str, schema: str) -> str:
    """The statement that makes a trigger function.

    It looks at the tables of ``schema`` (quoted), whatever a session's search path says: a temporary table of the same
    name would come first there.
    """
    return (
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
        f" SET search_path = pg_catalog, {schema}, pg_temp AS $${POSTGRES_FUNCTIONS_2[name]}$$"
    )
