"""From a request to the ledger's command."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.secrets import SecretKeys, token_digest
from rollbook.server.admission import Admission, admission, timeout_us
from rollbook.server.errors import ApiError
from rollbook.settings import ApiSettings
from rollbook_client.messages import RolloutInitRequest

KEYS = SecretKeys((b"k" * 32,))
SETTINGS = ApiSettings(database_url="sqlite:///x", queue="q", max_queue_depth=7, polling_lease_timeout_sec=90.5)
REQUEST = RolloutInitRequest(
    initial_messages=[],
    chat_completions_url="https://chat.example/cap/1",
    rollout_id="r-1",
    llm_api_key="sk-1",
)


def test_command_keeps_the_tokens_digest_and_what_makes_the_token_again() -> None:
    asked = admission(REQUEST, SETTINGS, KEYS)
    command = asked.command
    token = asked.tokens[command.lease_digest]
    assert command.lease_digest == token_digest(token)
    assert KEYS.token(command.lease_nonce) == token
    assert (command.idempotency_key, command.same_digests) == (None, ())
    assert (command.queue, command.max_queue_depth, command.lease_timeout_us) == ("q", 7, 90_500_000)


def test_tokens_differ_from_admission_to_admission() -> None:
    assert len({digest for _ in range(50) for digest in admission(REQUEST, SETTINGS, KEYS).tokens}) == 50


def repeated(request: RolloutInitRequest = REQUEST, *, keys: SecretKeys = KEYS, key: str = "k-1") -> Admission:
    return admission(request, SETTINGS, keys, idempotency_key=key)


def test_same_request_with_the_same_idempotency_key_has_the_same_token() -> None:
    first, again = repeated(), repeated()
    assert first.tokens == again.tokens
    assert first.command.same_digests == (first.command.lease_digest,)
    assert KEYS.token(first.command.lease_nonce) == first.tokens[first.command.lease_digest]
    assert first.command.sealed != again.command.sealed


@pytest.mark.parametrize(
    "change",
    [
        {"rollout_id": "r-2"},
        {"chat_completions_url": "https://chat.example/cap/2"},
        {"llm_api_key": "sk-2"},
        {"llm_api_key": None},
        {"initial_messages": [{"role": "user"}]},
        {"label": "x"},
        {"label": ""},
        {"metadata": {}},
        {"metadata": {"a": "\ud800"}},
        {"grade": False},
        {"agent_timeout_sec": 1.0},
        {"grader_timeout_sec": 1.0},
        {"extra_fields": {"a": 1}},
    ],
    ids=str,
)
def test_any_other_request_has_another_token(change: dict[str, Any]) -> None:
    other = repeated(msgspec.structs.replace(REQUEST, **change))
    assert other.tokens.keys().isdisjoint(repeated().tokens)


def test_another_idempotency_key_makes_another_token() -> None:
    assert repeated(key="k-2").tokens.keys().isdisjoint(repeated().tokens)


@pytest.mark.parametrize("odd", ["x", "\ud800"])
def test_order_in_which_a_request_was_written_does_not_matter(odd: str) -> None:
    one = msgspec.structs.replace(REQUEST, metadata={"a": {"x": 1, "y": odd}, "b": 2})
    other = msgspec.structs.replace(REQUEST, metadata={"b": 2, "a": {"y": odd, "x": 1}})
    assert repeated(one).tokens == repeated(other).tokens


def test_token_is_known_again_after_the_secret_key_was_rotated() -> None:
    before = repeated()
    rotated = SecretKeys((b"n" * 32, b"k" * 32))
    after = repeated(keys=rotated)
    assert before.command.lease_digest in after.command.same_digests
    assert after.tokens[before.command.lease_digest] == before.tokens[before.command.lease_digest]
    assert after.command.lease_digest not in before.tokens
    assert rotated.token(after.command.lease_nonce) == after.tokens[after.command.lease_digest]


def test_url_and_key_are_sealed_for_this_rollout_and_nowhere_else() -> None:
    command = admission(REQUEST, SETTINGS, KEYS, idempotency_key="k").command
    secrets = KEYS.open(command.sealed, "r-1")
    assert (secrets.chat_completions_url, secrets.llm_api_key) == ("https://chat.example/cap/1", "sk-1")
    shown = repr(msgspec.structs.replace(command, sealed=b""))
    assert "sk-1" not in shown
    assert "cap/1" not in shown


@pytest.mark.parametrize("name", ["chat_completions_url", "llm_api_key"])
def test_secret_without_utf8_form_is_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError, match=name):
        admission(msgspec.structs.replace(REQUEST, **{name: "a\ud800"}), SETTINGS, KEYS)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_finite_timeout_fits_the_ledgers_integers(timeout_sec: float) -> None:
    value = timeout_us(timeout_sec)
    assert value is not None
    assert abs(value) <= 10**17
    if abs(timeout_sec) < 10**9:
        assert value == pytest.approx(timeout_sec * 1_000_000, abs=1)


def test_no_timeout_stays_none() -> None:
    assert timeout_us(None) is None
