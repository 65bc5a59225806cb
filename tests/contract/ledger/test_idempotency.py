"""Admissions with an idempotency key, as the ledger keeps them: found again by any process, in any transaction."""

import asyncio
from typing import Any

import msgspec
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import KeyReused, RolloutKnown
from rollbook.ledger.replay import verify_replay
from tests.support.ledger import Writing, admit, claim, event_types, finish, rows, scheduler, writing


def keyed(rollout_id: str = "r-1", *, key: str = "k-1", body: str = "a", **options: Any) -> cmd.Admit:
    """An admission whose token follows from key and body."""
    digest = f"{key} {rollout_id} {body}".encode().ljust(32)
    command = admit(rollout_id, **options)
    return msgspec.structs.replace(command, idempotency_key=key, lease_digest=digest, same_digests=(digest,))


def test_repeated_admission_answers_the_first_and_writes_nothing(writer: Writing, database_url: str) -> None:
    first = writer.do(keyed())
    assert writer.do(keyed()) == first
    assert event_types(database_url, "r-1") == ["rollout_admitted"]
    assert rows(database_url, "SELECT count(*) FROM secrets") == [(1,)]
    assert audit(database_url) == []
    assert verify_replay(database_url) == []


def test_repeated_admission_is_answered_after_the_end_and_brings_no_secret_back(
    writer: Writing, database_url: str
) -> None:
    writer.batch(scheduler(), keyed())
    writer.batch(claim(), finish())
    again = writer.do(keyed())
    assert (again.status, again.number) == ("success", 1)
    assert rows(database_url, "SELECT count(*) FROM secrets") == [(0,)]


def test_repetition_within_one_transaction_is_one_admission(writer: Writing, database_url: str) -> None:
    first, again, other, unkeyed = writer.batch(keyed(), keyed(), keyed("r-2"), admit("r-1"))
    assert again == first
    assert isinstance(other, KeyReused)
    assert isinstance(unkeyed, RolloutKnown)
    assert rows(database_url, "SELECT rollout_id, idempotency_key FROM rollouts") == [("r-1", "k-1")]


@pytest.mark.parametrize("command", [keyed(body="b"), keyed("r-2")], ids=["other body", "other rollout"])
def test_key_with_another_request_is_refused(writer: Writing, database_url: str, command: cmd.Admit) -> None:
    writer.do(keyed())
    with pytest.raises(KeyReused):
        writer.do(command)
    assert rows(database_url, "SELECT count(*) FROM events") == [(1,)]


def test_another_key_or_none_finds_a_known_id_taken(writer: Writing) -> None:
    writer.batch(keyed(), admit("r-2"))
    for command in (keyed(key="k-2"), admit("r-1"), keyed("r-2", key="k-2")):
        with pytest.raises(RolloutKnown):
            writer.do(command)


def test_refused_admission_leaves_its_key_free(writer: Writing) -> None:
    writer.do(admit("r-1"))
    with pytest.raises(RolloutKnown):
        writer.do(keyed("r-1"))
    assert writer.do(keyed("r-2")).idempotency_key == "k-1"


def test_key_is_found_again_after_a_restart(database_url: str) -> None:
    with writing(database_url) as writer:
        first = writer.do(keyed())
    with writing(database_url) as writer:
        assert writer.do(keyed()) == first


def test_full_queue_does_not_hide_what_was_admitted(writer: Writing) -> None:
    first = writer.do(keyed(max_queue_depth=1))
    assert writer.do(keyed(max_queue_depth=1)) == first


def test_many_keys_are_found_in_one_transaction(writer: Writing) -> None:
    commands = [keyed(f"r-{i}", key=f"k-{i}") for i in range(600)]
    assert writer.batch(*commands) == writer.batch(*commands)


async def test_two_processes_admit_once_and_answer_alike(database_url: str) -> None:
    first, second = await Ledger.open(database_url), await Ledger.open(database_url)
    try:
        for i in range(40):
            command = keyed(f"r-{i}", key=f"k-{i}")
            one, other = await asyncio.gather(first.submit(command), second.submit(command))
            assert one == other
    finally:
        await first.close()
        await second.close()
    assert rows(database_url, "SELECT count(*) FROM events") == [(40,)]
    assert audit(database_url) == []
    assert verify_replay(database_url) == []
