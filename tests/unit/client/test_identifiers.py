"""Which rollout ids are legal."""

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook_client import validate_rollout_id
from rollbook_client.identifiers import MAX_ROLLOUT_ID_BYTES, new_idempotency_key, validate_idempotency_key


@pytest.mark.parametrize("rollout_id", ["a", "a?b", "a b", "a%2Fb", "...", ".a", "ä", "🎲", "#", "a" * 1024, "ä" * 512])
def test_one_path_segment_is_accepted(rollout_id: str) -> None:
    validate_rollout_id(rollout_id)


@pytest.mark.parametrize(
    ("rollout_id", "reason"),
    [
        ("", "no path segment"),
        (".", "no path segment"),
        ("..", "no path segment"),
        ("a/b", "slash"),
        ("a\\b", "slash"),
        ("a\x00b", "NUL"),
        ("\ud800", "surrogate"),
        ("a" * 1025, "1025 bytes"),
        ("ä" * 513, "1026 bytes"),
    ],
)
def test_anything_else_is_refused_with_its_reason(rollout_id: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        validate_rollout_id(rollout_id)


@given(st.text(alphabet=st.characters(exclude_characters="/\\\x00", exclude_categories=["Cs"]), min_size=1))
def test_every_other_text_within_the_limit_is_accepted(rollout_id: str) -> None:
    if rollout_id not in (".", "..") and len(rollout_id.encode()) <= MAX_ROLLOUT_ID_BYTES:
        validate_rollout_id(rollout_id)


def test_new_idempotency_keys_are_sound_all_different_and_begin_with_the_time() -> None:
    keys = [new_idempotency_key() for _ in range(1_000)]
    for key in keys:
        validate_idempotency_key(key)
    assert len(set(keys)) == len(keys)
    times = [key[:13] for key in keys]
    assert times == sorted(times)
    assert {UUID(key).variant for key in keys} == {RFC_4122}
