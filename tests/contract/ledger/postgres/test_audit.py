"""The audit finds guards that are missing, switched off or weakened."""

import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.postgres.snapshot import GUARDS
from rollbook_projections.guards import POSTGRES_FUNCTIONS_2
from tests.support.histories import interleaved
from tests.support.ledger import Writing
from tests.support.sql import shell


@pytest.fixture
def filled(writer: Writing, database_url: str) -> str:
    interleaved(writer)
    return database_url


def change(database_url: str, *statements: str) -> None:
    with shell(database_url) as connection:
        for statement in statements:
            connection.rows(statement)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER {guard} ON {table}",
        "ALTER TABLE {table} DISABLE TRIGGER {guard}",
        "ALTER TABLE {table} ENABLE REPLICA TRIGGER {guard}",
        "ALTER TRIGGER {guard} ON {table} RENAME TO another",
    ],
    ids=["dropped", "disabled", "for replicas only", "renamed"],
)
def test_missing_or_disabled_guard_is_found(filled: str, guard: str, statement: str) -> None:
    change(filled, statement.format(guard=guard, table=GUARDS[guard].table))
    assert [(finding.check, guard in str(finding)) for finding in audit(filled)] == [("guards", True)]


LET_THROUGH = """
CREATE FUNCTION let_through() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN /* events are append-only: % refused */ RETURN NEW; END $$
"""


@pytest.mark.parametrize(
    ("guard", "definition"),
    [
        ("events_append_only", "BEFORE UPDATE ON events FOR EACH STATEMENT EXECUTE FUNCTION let_through()"),
        ("events_append_only", "BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION refuse_event_change()"),
        (
            "events_append_only",
            "BEFORE UPDATE OF seq ON events FOR EACH STATEMENT EXECUTE FUNCTION refuse_event_change()",
        ),
        (
            "events_append_only",
            "BEFORE UPDATE ON events FOR EACH STATEMENT WHEN (false) EXECUTE FUNCTION refuse_event_change()",
        ),
        ("events_append_only", "AFTER UPDATE ON events FOR EACH ROW EXECUTE FUNCTION refuse_event_change()"),
        ("events_no_delete", "BEFORE DELETE ON events FOR EACH STATEMENT EXECUTE FUNCTION guard_event_delete()"),
        ("events_no_truncate", "BEFORE TRUNCATE ON secrets FOR EACH STATEMENT EXECUTE FUNCTION refuse_event_change()"),
    ],
)
def test_weakened_guard_is_found(filled: str, guard: str, definition: str) -> None:
    change(filled, LET_THROUGH, f"DROP TRIGGER {guard} ON events", f"CREATE TRIGGER {guard} {definition}")
    assert [(finding.check, guard in str(finding)) for finding in audit(filled)] == [("guards", True)]


@pytest.mark.parametrize("function", POSTGRES_FUNCTIONS_2)
def test_replaced_function_is_found(filled: str, function: str) -> None:
    change(filled, LET_THROUGH.replace("CREATE", "CREATE OR REPLACE").replace("let_through", function))
    weak = [name for name, guard in GUARDS.items() if guard.function == function]
    found = audit(filled)
    assert weak
    assert [(finding.check, finding.message.split()[1]) for finding in found] == [("guards", name) for name in weak]
