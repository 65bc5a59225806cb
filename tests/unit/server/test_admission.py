"""From a request to the ledger's command."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.secrets import SecretKeys, token_digest
from rollbook.server.admission import admission, timeout_us
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
    command, token = admission(REQUEST, SETTINGS, KEYS)
    assert command.lease_digest == token_digest(token)
    assert KEYS.token(command.lease_nonce) == token
    assert (command.queue, command.max_queue_depth, command.lease_timeout_us) == ("q", 7, 90_500_000)


def test_tokens_differ_from_admission_to_admission() -> None:
    assert len({admission(REQUEST, SETTINGS, KEYS)[1] for _ in range(50)}) == 50


def test_url_and_key_are_sealed_for_this_rollout_and_nowhere_else() -> None:
    command, _ = admission(REQUEST, SETTINGS, KEYS)
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
