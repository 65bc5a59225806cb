"""The hash chain: every part of an event is sealed."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.chain import GENESIS, link

EVENT = {
    "previous": GENESIS,
    "number": 7,
    "seq": 3,
    "kind": "lease_renewed",
    "version": 1,
    "recorded_at": 1_700_000_000_000_000,
    "payload": b'{"expires_at":5}',
}


def test_hash_is_over_the_previous_hash_the_envelope_and_the_stored_bytes() -> None:
    envelope = (7).to_bytes(8) + (3).to_bytes(4) + (1).to_bytes(4) + (1_700_000_000_000_000).to_bytes(8)
    expected = sha256(GENESIS + envelope + b'lease_renewed\0{"expires_at":5}').digest()
    assert link(**EVENT) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"previous": b"\1" * 32},
        {"number": 8},
        {"seq": 4},
        {"kind": "lease_renewee"},
        {"version": 2},
        {"recorded_at": 1_700_000_000_000_001},
        {"payload": b'{"expires_at":6}'},
        {"kind": "lease_renewed{", "payload": b'"expires_at":5}'},
    ],
)
def test_any_other_part_gives_another_hash(change: dict[str, object]) -> None:
    assert link(**EVENT) != link(**{**EVENT, **change})  # type: ignore[arg-type]


@given(st.binary(max_size=64), st.integers(0, 63), st.integers(1, 255))
def test_any_flipped_byte_of_a_payload_gives_another_hash(payload: bytes, index: int, flip: int) -> None:
    if index < len(payload):
        altered = payload[:index] + bytes([payload[index] ^ flip]) + payload[index + 1 :]
        assert link(GENESIS, 1, 1, "a", 1, 1, payload) != link(GENESIS, 1, 1, "a", 1, 1, altered)
