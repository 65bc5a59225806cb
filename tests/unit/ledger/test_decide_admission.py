"""The rules of admission that go beyond one rollout: idempotency keys and closed admission. Pure, no database."""

from typing import Any

import msgspec
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.decide import Facts, decide
from rollbook.ledger.refusals import AdmissionClosed, Closure, KeyReused, QueueFull, RolloutKnown
from rollbook_client import events as ev
from rollbook_projections import RolloutState
from tests.support.ledger import DIGEST, START_US, History, admit, admitted

OTHER_DIGEST = b"o" * 32
CLOSURE = Closure("", START_US, "someone")


def keyed_admit(*digests: bytes, key: str = "k-1", rollout_id: str = "r-1", depth: int | None = None) -> cmd.Admit:
    command = admit(rollout_id, max_queue_depth=depth)
    return msgspec.structs.replace(command, idempotency_key=key, same_digests=digests or (DIGEST,))


def known(*more: ev.Event, key: str | None = "k-1") -> RolloutState:
    return History().add(admitted(idempotency_key=key), *more)


def over() -> RolloutState:
    return known(ev.RolloutFinished(status="failure", err_category="lease_expired"))


def judged(state: RolloutState | None, command: cmd.Admit, **facts: Any) -> Any:
    return decide(state, Facts(api_seen_at=START_US, **facts), command, START_US)


def test_key_is_recorded_and_part_of_the_state() -> None:
    (event,) = judged(None, keyed_admit())
    assert event.idempotency_key == "k-1"
    assert History().add(event).idempotency_key == "k-1"


def test_admission_without_a_key_records_none() -> None:
    (event,) = judged(None, admit())
    assert event.idempotency_key is None


@pytest.mark.parametrize("state", [known(), over()], ids=["waiting", "over"])
@pytest.mark.parametrize("facts", [{}, {"queued": 9}, {"closure": CLOSURE}, {"queued": 9, "closure": CLOSURE}], ids=str)
def test_same_request_is_answered_again_whatever_became_of_it_and_the_queue(
    state: RolloutState, facts: dict[str, Any]
) -> None:
    assert judged(state, keyed_admit(depth=1), keyed=state, **facts) == ()


def test_same_request_is_known_by_any_of_its_digests() -> None:
    assert judged(known(), keyed_admit(OTHER_DIGEST, DIGEST), keyed=known()) == ()


@pytest.mark.parametrize("facts", [{}, {"queued": 9}, {"closure": CLOSURE}], ids=str)
def test_another_request_with_the_same_key_is_refused_before_all_else(facts: dict[str, Any]) -> None:
    answer = judged(known(), keyed_admit(OTHER_DIGEST, depth=1), keyed=known(), **facts)
    assert isinstance(answer, KeyReused)
    assert "new key" in str(answer)


def test_key_of_another_rollout_is_refused() -> None:
    answer = judged(None, keyed_admit(OTHER_DIGEST, rollout_id="r-2"), keyed=known())
    assert isinstance(answer, KeyReused)
    assert (answer.key, answer.rollout_id) == ("k-1", "r-1")


@pytest.mark.parametrize("state", [known(key="k-2"), known(key=None)], ids=["other key", "no key"])
def test_known_id_with_another_key_stays_taken(state: RolloutState) -> None:
    assert isinstance(judged(state, keyed_admit()), RolloutKnown)


def test_known_id_without_a_key_stays_taken() -> None:
    assert isinstance(judged(known(), admit()), RolloutKnown)


@pytest.mark.parametrize("state", [None, known()], ids=["new", "known"])
@pytest.mark.parametrize("command", [admit(max_queue_depth=1), keyed_admit(key="k-9", depth=1)], ids=["plain", "keyed"])
def test_closed_admission_is_told_before_a_full_queue_and_a_known_id(
    state: RolloutState | None, command: cmd.Admit
) -> None:
    assert isinstance(judged(state, command, queued=1), QueueFull)
    answer = judged(state, command, queued=1, closure=CLOSURE)
    assert isinstance(answer, AdmissionClosed)
    assert "someone" in str(answer)
    assert "rollbook drain --off" in str(answer)
