"""Fields, defaults and limits of the wire messages."""

from typing import Any

import msgspec
import pytest

from rollbook_client import (
    POLLING_LEASE_HEADER,
    CancelRolloutsRequest,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutLifecycle,
    RolloutResultResponse,
    RolloutSample,
    RolloutStatus,
)

_REQUEST = {"initial_messages": [], "chat_completions_url": "http://chat.test/v1", "rollout_id": "r1"}
_ADMISSION = {
    "rollout_id": "r1",
    "status": "queued",
    "polling_lease_token": "t",
    "result_wait_timeout_sec": 30,
    "polling_lease_timeout_sec": 120,
}


def _request(**fields: Any) -> RolloutInitRequest:
    return msgspec.json.decode(msgspec.json.encode(_REQUEST | fields), type=RolloutInitRequest)


def _admission(**fields: Any) -> RolloutInitResponse:
    return msgspec.json.decode(msgspec.json.encode(_ADMISSION | fields), type=RolloutInitResponse)


def test_lease_header_is_the_protocols() -> None:
    assert POLLING_LEASE_HEADER == "X-Osmosis-Rollout-Lease"


def test_request_needs_three_fields_and_defaults_the_rest() -> None:
    request = _request(unknown_field="ignored")
    assert request.grade is True
    assert (request.label, request.metadata, request.llm_api_key, request.extra_fields) == (None, None, None, None)
    assert (request.agent_timeout_sec, request.grader_timeout_sec) == (None, None)


@pytest.mark.parametrize("missing", sorted(_REQUEST))
def test_request_without_a_required_field_is_refused(missing: str) -> None:
    fields = {name: value for name, value in _REQUEST.items() if name != missing}
    with pytest.raises(msgspec.ValidationError, match=missing):
        msgspec.convert(fields, RolloutInitRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {"rollout_id": "a/b"},
        {"llm_api_key": ""},
        {"label": 7},
        {"initial_messages": ["text"]},
        {"metadata": []},
        {"grade": "yes"},
        {"agent_timeout_sec": "soon"},
    ],
)
def test_request_out_of_range_is_refused_when_decoded(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        _request(**fields)


@pytest.mark.parametrize("name", ["agent_timeout_sec", "grader_timeout_sec"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_request_timeouts_must_be_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        msgspec.convert({**_REQUEST, name: value}, RolloutInitRequest)


@pytest.mark.parametrize("value", [0, -1, 0.5, 1e308])
def test_request_timeouts_may_be_any_finite_number(value: float) -> None:
    assert _request(agent_timeout_sec=value).agent_timeout_sec == value


def test_secrets_are_not_in_what_logs_show_of_a_message() -> None:
    request = _request(llm_api_key="sk-very-secret", chat_completions_url="http://chat.test/cap-secret")
    admission = _admission(polling_lease_token="secret-token")
    assert "secret" not in f"{request} {request!r} {admission} {admission!r}"


@pytest.mark.parametrize(
    "fields",
    [
        {"polling_lease_token": ""},
        {"result_wait_timeout_sec": 0},
        {"result_wait_timeout_sec": -1},
        {"polling_lease_timeout_sec": 30},
        {"polling_lease_timeout_sec": 29.9},
        {"status": "paused"},
    ],
)
def test_admission_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        _admission(**fields)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["result_wait_timeout_sec", "polling_lease_timeout_sec"])
def test_admission_times_must_be_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        msgspec.convert({**_ADMISSION, name: value}, RolloutInitResponse)


def test_result_encodes_every_key_always() -> None:
    answer = RolloutResultResponse(rollout_id="r1", status=RolloutStatus.QUEUED)
    assert msgspec.json.decode(msgspec.json.encode(answer)) == {
        "rollout_id": "r1",
        "status": "queued",
        "sample": None,
        "err_message": None,
        "err_category": None,
    }


def test_sample_encodes_every_key_always_and_has_no_trajectory() -> None:
    assert msgspec.json.decode(msgspec.json.encode(RolloutSample())) == {
        "messages": [],
        "label": None,
        "reward": None,
        "remove_sample": False,
        "metrics": {},
        "extra_fields": {},
    }


def test_samples_do_not_share_their_containers() -> None:
    RolloutSample().metrics["turns"] = 1
    assert RolloutSample().metrics == {}


def test_cancel_request_sends_only_its_selector() -> None:
    assert msgspec.json.encode(CancelRolloutsRequest(ids=[])) == b'{"ids":[]}'


def test_lifecycle_counts_are_not_negative() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"accepting_rollouts": True, "active_rollouts": -1}, RolloutLifecycle)
