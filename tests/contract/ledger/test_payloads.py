"""Whatever agents emit comes back unchanged, and secrets are nowhere."""

import json
from typing import Any

import msgspec
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.audit import audit
from rollbook.ledger.codec import loads
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.secrets import RolloutSecrets, SecretKeys, endpoint_digest, endpoint_origin
from rollbook_client.events import StageSpan
from tests.support.contents import all_bytes
from tests.support.ledger import Writing, admit, api, cancel, claim, close, finish, poll, rows, scheduler

DOCUMENTS = {
    "nul": "\x00 between \x00",
    "surrogates": "lone \ud800 and \udfff",
    "pair": "a pair \ud83d\ude00 of surrogates",
    "unicode": "é𝄞\u2028\u202e",
    "floats": [1e308, -1e308, 5e-324, 0.1],
    "big integers": [2**63, -(2**64), 10**40],
    "two megabytes": "2 MB " * 400_000,
    "odd keys": {"": {"\x00": [None, True, False, {}]}},
    "nested": json.loads("[" * 50 + "]" * 50),
}
TEXTS = {name: text for name, text in DOCUMENTS.items() if isinstance(text, str)}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
async def test_documents_come_back_unchanged(ledger: Ledger, database_url: str, document: Any) -> None:
    request = json.dumps({"initial_messages": [document]}).encode()
    sample = json.dumps({"messages": [document]}).encode()
    trajectory = json.dumps([document]).encode()
    await ledger.submit(scheduler())
    await ledger.submit(admit(request=request))
    claimed = await ledger.submit(claim())
    (work,) = await ledger.reader.work(list(claimed))
    assert loads(bytes(work.request.request)) == json.loads(request)
    command = msgspec.structs.replace(finish(sample=sample), trajectory=trajectory, trajectory_saved="own")
    result = await ledger.reader.result(await ledger.submit(command))
    assert result.sample is not None
    assert result.trajectory is not None
    assert loads(bytes(result.sample)) == json.loads(sample)
    assert loads(bytes(result.trajectory)) == json.loads(trajectory)
    assert verify_replay(database_url) == []
    assert audit(database_url) == []


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_texts_in_every_place_come_back_and_replay(ledger: Ledger, database_url: str, text: str) -> None:
    await ledger.submit(api())
    await ledger.submit(scheduler())
    await ledger.submit(admit("r-1", label=text))
    await ledger.submit(admit("r-2", label=text))
    await ledger.submit(admit("r-3"))
    await ledger.submit(claim(limit=2))
    await ledger.submit(close("r-2", reason=text))
    await ledger.submit(cancel("r-3", requested_by=text))
    command = finish(
        "r-1",
        status="failure",
        err_message=text,
        spans=(StageSpan(text, 1, 2),),
        rewards=(cmd.Score(text, 0.5),),
        metrics=(cmd.Score(text, None),),
    )
    result = await ledger.reader.result(await ledger.submit(command))
    assert result.err_message == json.loads(json.dumps(text))
    assert verify_replay(database_url) == []
    assert audit(database_url) == []


def test_stored_payload_is_valid_text_with_the_exact_bytes(writer: Writing, database_url: str) -> None:
    request = b'{"b": 1e308,  "a":"\\u0000\\u00e9","n":123456789012345678901234567890}'
    writer.do(admit(request=request))
    ((payload,),) = rows(database_url, "SELECT payload FROM events")
    assert isinstance(payload, str)
    assert request.decode() in payload


@pytest.mark.parametrize("rollout_id", ["a?b", "a b", "%2F", "é𝄞", "x" * 1024, "'", "\u202e", "..."])
def test_legal_ids_are_found_again(writer: Writing, rollout_id: str) -> None:
    writer.do(admit(rollout_id))
    assert writer.do(poll(rollout_id)).rollout_id == rollout_id


def test_ids_are_compared_bytewise(writer: Writing) -> None:
    names = ["run", "RUN", "é", "e\u0301", "run ", "straße", "strasse"]
    answers = writer.batch(*(admit(name) for name in names))
    assert [answer.rollout_id for answer in answers] == names


URL = "https://user:a-password-in-the-url@chat.example/v1/capability-7f3a9/chat?token=tok-in-the-url-123"
KEY = "sk-live-0123456789abcdefghij"
SECRETS = [KEY, URL, "a-password-in-the-url", "capability-7f3a9", "tok-in-the-url-123"]


def admit_secretly(keys: SecretKeys, name: str) -> cmd.Admit:
    """An admission as the API makes it."""
    command = admit(name, sealed=keys.seal(RolloutSecrets(URL, KEY), name))
    return msgspec.structs.replace(command, endpoint_origin=endpoint_origin(URL), endpoint_digest=endpoint_digest(URL))


async def test_secrets_lie_nowhere_in_clear_neither_during_a_rollout_nor_after(
    ledger: Ledger, database_url: str
) -> None:
    await ledger.submit(scheduler())
    for name in ("r-1", "r-2", "r-3"):
        await ledger.submit(admit_secretly(ledger.keys, name))
    claimed = await ledger.submit(claim(limit=2))
    for work, state in zip(await ledger.reader.work(list(claimed)), claimed, strict=True):
        assert ledger.keys.open(work.sealed, state.rollout_id) == RolloutSecrets(URL, KEY)
    during = all_bytes(database_url)
    await ledger.submit(finish("r-1"))
    after = all_bytes(database_url)
    await ledger.close()
    closed = all_bytes(database_url)
    for content in (during, after, closed):
        assert b"https://chat.example" in content
        assert [secret for secret in SECRETS if secret.encode() in content] == []


def test_sealed_secrets_go_when_their_rollout_is_over_and_not_before(writer: Writing, database_url: str) -> None:
    def kept() -> set[int]:
        return {number for (number,) in rows(database_url, "SELECT number FROM secrets")}

    writer.batch(api(), scheduler(), *(admit(f"r-{i}") for i in range(1, 6)))
    writer.do(claim(limit=3))
    assert kept() == {1, 2, 3, 4, 5}
    writer.do(cancel("r-4"))
    assert kept() == {1, 2, 3, 5}
    writer.do(finish("r-1"))
    assert kept() == {2, 3, 5}
    writer.do(close("r-2"))
    assert kept() == {2, 3, 5}, "a lost attempt is tried again and needs them"
    writer.clock.forward(121)
    writer.batch(cmd.Beat("a-1"))
    writer.do(cmd.ExpireLeases())
    assert kept() == {3}, "an execution that still cleans up keeps them"
    writer.do(finish("r-3"))
    assert kept() == set()


def test_rollout_that_ends_in_its_own_batch_leaves_no_secret(writer: Writing, database_url: str) -> None:
    writer.batch(admit("r-1"), cancel("r-1"))
    assert rows(database_url, "SELECT count(*) FROM secrets") == [(0,)]
