"""The bytes that answer a finished rollout."""

from __future__ import annotations

import json

import msgspec

from rollbook.server.polling import reduced_sample, result_bytes
from rollbook_client.events import RolloutFinished


def test_all_keys_are_there_when_nothing_is_to_say() -> None:
    body = json.loads(result_bytes("r-1", RolloutFinished(status="cancelled")))
    assert body == {
        "rollout_id": "r-1",
        "status": "cancelled",
        "sample": None,
        "err_message": None,
        "err_category": None,
    }


def test_stored_bytes_of_the_sample_are_spliced_in_untouched() -> None:
    stored = b'{"messages": [ 1.50, 1e2, 18446744073709551616, "\\u0000" ],  "reward":1}'
    assert stored in result_bytes("r-1", RolloutFinished(status="success", sample=msgspec.Raw(stored)))


def test_trajectory_never_leaves() -> None:
    finished = RolloutFinished(status="success", trajectory=msgspec.Raw(b'["secret step"]'), trajectory_saved="own")
    assert b"secret step" not in result_bytes("r-1", finished)


def test_reduced_sample_keeps_what_was_earned() -> None:
    stored = {"messages": ["\ud800"], "label": "\udfffx", "reward": 0.25, "remove_sample": True, "metrics": {"a": 1}}
    assert json.loads(bytes(reduced_sample(msgspec.Raw(json.dumps(stored))))) == {
        "messages": [],
        "label": "?x",
        "reward": 0.25,
        "remove_sample": True,
        "metrics": {},
        "extra_fields": {},
    }


def test_reduced_sample_without_label_and_reward_has_them_null() -> None:
    answer = json.loads(bytes(reduced_sample(msgspec.Raw(b'{"messages":["\\ud800"],"label":null,"reward":null}'))))
    assert (answer["label"], answer["reward"], answer["remove_sample"]) == (None, None, False)


def test_message_without_utf8_form_is_told_with_question_marks() -> None:
    finished = RolloutFinished(status="failure", err_message="é\ud800", err_category="agent_error")
    assert json.loads(result_bytes("r-1", finished))["err_message"] == "é?"
