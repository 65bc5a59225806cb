"""The step that gives admissions their key: it takes up what events have recorded, and nothing that looks alike."""

import msgspec

from rollbook.ledger.replay import verify_replay
from rollbook.ledger.schema import downgrade, upgrade
from rollbook.ledger.urls import parse_url
from tests.support.ledger import DIGEST, admit, rows, writing


def test_recorded_keys_outlive_a_way_down_and_up_again(database_url: str) -> None:
    keyed = msgspec.structs.replace(admit("r-1"), idempotency_key='"k"\\', same_digests=(DIGEST,))
    alike = b'{"metadata":{"a":"\\ud800","idempotency_key":"no"},"initial_messages":[]}'
    with writing(database_url) as writer:
        first = writer.do(keyed)
        writer.do(admit("r-2", request=alike))
    url = parse_url(database_url)
    downgrade(url, "0001")
    upgrade(url)
    found = rows(database_url, "SELECT rollout_id, idempotency_key FROM rollouts ORDER BY number")
    assert found == [("r-1", '"k"\\'), ("r-2", None)]
    assert verify_replay(database_url) == []
    with writing(database_url) as writer:
        assert writer.do(keyed) == first
