"""The recorded ledger is one that a real store wrote, sound, and with most of what can happen in it."""

from rollbook.ledger.audit import audit
from rollbook.ledger.replay import verify_replay
from rollbook_client.events import EVENT_TYPES
from rollbook_client.statuses import RolloutErrorCategory
from tests.contract.sql.asking import ask


def column(database_url: str, query: str) -> set[object]:
    return {row[0] for row in ask(database_url, query).rows}


def test_it_is_sound(recorded_url: str) -> None:
    assert audit(recorded_url) == []
    assert verify_replay(recorded_url) == []


def test_its_events_are_the_same_on_both(recorded_on_sqlite: str, recorded_on_postgres: str) -> None:
    query = "SELECT position, number, seq, type, recorded_at, payload, hash FROM events ORDER BY position"
    assert ask(recorded_on_sqlite, query) == ask(recorded_on_postgres, query)


def test_every_kind_of_event_is_in_it(recorded_url: str) -> None:
    assert column(recorded_url, "SELECT type FROM events") == set(EVENT_TYPES)


def test_every_ending_is_in_it(recorded_url: str) -> None:
    statuses = {"queued", "running", "success", "failure", "cancelled"}
    assert column(recorded_url, "SELECT status FROM rollouts") == statuses
    categories = {None, *(category.value for category in RolloutErrorCategory)}
    assert column(recorded_url, "SELECT err_category FROM rollouts") == categories
    outcomes = {"completed", "cancelled", "lost", "released"}
    assert column(recorded_url, "SELECT outcome FROM attempt_ends") == outcomes


def test_what_queries_stumble_over_is_in_it(recorded_url: str) -> None:
    assert len(column(recorded_url, "SELECT queue FROM rollouts")) == 3
    assert len(column(recorded_url, "SELECT admitted_day FROM rollout_summary")) == 3
    assert None in column(recorded_url, "SELECT label FROM admissions")
    assert None in column(recorded_url, "SELECT reward FROM rollout_summary WHERE status = 'success'")
    assert None in column(recorded_url, "SELECT scheduler FROM lease_losses")
    assert 0 in column(recorded_url, "SELECT attempt FROM stage_summary")
