"""Events to payload bytes and back, with everything that agents emit."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.codec import UPCASTERS, CodecError, ascii_json, decode, encode, loads
from rollbook_client import events as ev
from tests.support.ledger import admitted

SAMPLES = [
    admitted(),
    admitted(label=None, agent_timeout_us=-5),
    ev.LeaseRenewed(expires_at=1),
    ev.LeaseExtended(expires_at=2, reason="no API"),
    ev.LeaseExpired(expired_at=3),
    ev.AttemptStarted(attempt=1, scheduler="s-1"),
    ev.AttemptEnded(attempt=1, outcome="lost", reason="died"),
    ev.AttemptEnded(attempt=1, outcome="completed"),
    ev.PhaseEntered(attempt=1, phase="grading"),
    ev.StageTimed(attempt=1, spans=(ev.StageSpan("agent", 1, 2), ev.StageSpan("grading", 2, 3))),
    ev.ModelCalled(attempt=1, call=1, model=None, started_at=1, ended_at=2),
    ev.ModelCalled(
        attempt=1,
        call=2,
        model="m",
        started_at=1,
        ended_at=4,
        first_chunk_at=2,
        streamed=True,
        input_tokens=3,
        output_tokens=2**53,
        cached_input_tokens=0,
        finish_reason="stop",
        error_kind="http",
        error="503",
        purpose="judge:style",
    ),
    ev.ExchangeStopped(attempt=1, condition="max_turns"),
    ev.MessageRewritten(attempt=1, hook="shorten", side="response"),
    ev.TraceSaved(attempt=1, version=1, size_bytes=2, data="eJyrBQABdQD5"),
    ev.ScoresRevised(task="t:T", by="cli:a", reward=None, scoring=2),
    ev.RewardRecorded(attempt=1, name="reward", value=None),
    ev.RewardRecorded(attempt=1, name="reward", value=0.5, scoring=2),
    ev.RewardRecorded(attempt=1, name="reward", value=1e308, weight=-0.5),
    ev.MetricRecorded(attempt=1, name="tokens", value=5e-324),
    ev.CancellationRequested(requested_by="api", selector="prefix:a"),
    ev.RolloutFinished(status="success", sample=msgspec.Raw(b'{"reward":1}'), trajectory=msgspec.Raw(b"[]")),
    ev.RolloutFinished(status="failure", err_message="no", err_category="timeout"),
]


def test_there_is_a_sample_of_every_event() -> None:
    assert {type(event) for event in SAMPLES} == set(ev.EVENT_TYPES.values())


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.TYPE)
def test_event_comes_back_as_it_was(event: ev.Event) -> None:
    payload = encode(event)
    assert decode(event.TYPE, event.VERSION, payload) == event
    assert decode(event.TYPE, event.VERSION, payload.decode()) == event


hard_texts = st.one_of(
    st.text(),
    st.text(st.sampled_from('a\x00\ud800\udfff\udc00\ud83d\U0001f600\x7f\u2028"\\'), max_size=12),
)


@given(hard_texts)
def test_any_text_comes_back_as_json_text_does(text: str) -> None:
    event = ev.RolloutFinished(status="failure", err_message=text, sample=msgspec.Raw(b'{"a":[1,null]}'))
    payload = encode(event)
    payload.decode()
    read = decode(event.TYPE, 1, payload)
    assert isinstance(read, ev.RolloutFinished)
    # Two surrogates that stand side by side are one character in JSON: a pair is the only thing that changes.
    assert read.err_message == json.loads(json.dumps(text))
    assert read.sample is not None
    assert msgspec.json.decode(read.sample) == {"a": [1, None]}


def test_lone_surrogate_is_stored_as_an_ascii_escape() -> None:
    payload = encode(ev.AttemptEnded(attempt=1, outcome="lost", reason="x\ud800y"))
    assert rb'"x\ud800y"' in payload
    assert payload.isascii()


def test_lone_surrogate_in_a_raw_part_is_readable() -> None:
    raw = msgspec.Raw(rb'{"messages":["\ud800"],"n":123456789012345678901234567890}')
    read = decode("rollout_finished", 1, encode(ev.RolloutFinished(status="success", sample=raw)))
    assert isinstance(read, ev.RolloutFinished)
    assert read.sample is not None
    assert loads(bytes(read.sample)) == {"messages": ["\ud800"], "n": 123456789012345678901234567890}


@pytest.mark.parametrize(
    "document",
    [b'{"a":"\\u0000"}', b"[1e308,-1e308,5e-324]", b"[123456789012345678901234567890,-18446744073709551617]"],
)
def test_raw_parts_keep_their_exact_bytes(document: bytes) -> None:
    event = admitted(request=msgspec.Raw(document))
    payload = encode(event)
    assert document in payload
    read = decode(event.TYPE, 1, payload)
    assert isinstance(read, ev.RolloutAdmitted)
    assert bytes(read.request) == document


def test_two_megabytes_of_text_come_back() -> None:
    text = "é\x00𝄞" * 700_000
    event = ev.RolloutFinished(status="failure", err_message=text)
    assert decode(event.TYPE, 1, encode(event)) == event


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    for event in (
        ev.RewardRecorded(attempt=1, name="r", value=number),
        ev.RewardRecorded(attempt=1, name="r", value=1.0, weight=number),
        ev.MetricRecorded(attempt=1, name="m", value=number),
    ):
        with pytest.raises(CodecError, match=event.TYPE):
            encode(event)
    with pytest.raises(CodecError):
        ascii_json([number])


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b"-Infinity", b"1e999", b"[-1e999]", b"{", b"", b"\xff"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError):
        loads(text)


def test_documents_nested_without_end_are_refused() -> None:
    with pytest.raises(CodecError):
        loads(b"[" * 100_000 + b"]" * 100_000)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | hard_texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hard_texts, inner, max_size=3),
        max_leaves=8,
    )
)
def test_ascii_json_reads_as_the_same_document(document: Any) -> None:
    text = ascii_json(document)
    assert text.isascii()
    assert loads(text) == json.loads(json.dumps(document))


def test_unknown_event_type_says_what_wrote_it() -> None:
    with pytest.raises(CodecError, match="newer Rollbook"):
        decode("model_dreamed", 1, b"{}")


def test_newer_version_is_refused() -> None:
    with pytest.raises(CodecError, match="newer than this Rollbook"):
        decode("lease_renewed", 2, b'{"expires_at":1}')


@pytest.mark.parametrize("payload", [b"{}", b"[]", b"null", b'{"expires_at":"soon"}', b'{"expires_at"', b"\xff"])
def test_payload_that_does_not_fit_is_refused(payload: bytes) -> None:
    with pytest.raises(CodecError):
        decode("lease_renewed", 1, payload)


@pytest.fixture
def third_version_of_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 named the time in seconds, version 2 in microseconds under the old name."""
    monkeypatch.setattr(ev.LeaseRenewed, "VERSION", 3)
    monkeypatch.setitem(UPCASTERS, ("lease_renewed", 1), lambda old: {"until": old["until"] * 1_000_000})
    monkeypatch.setitem(UPCASTERS, ("lease_renewed", 2), lambda old: {"expires_at": old["until"]})


@pytest.mark.usefixtures("third_version_of_renewals")
def test_old_versions_come_up_step_by_step() -> None:
    assert decode("lease_renewed", 1, b'{"until":7}') == ev.LeaseRenewed(expires_at=7_000_000)
    assert decode("lease_renewed", 2, b'{"until":7}') == ev.LeaseRenewed(expires_at=7)
    assert decode("lease_renewed", 3, b'{"expires_at":7}') == ev.LeaseRenewed(expires_at=7)


@pytest.mark.usefixtures("third_version_of_renewals")
def test_version_without_an_upcaster_is_refused() -> None:
    with pytest.raises(CodecError, match="older"):
        decode("lease_renewed", 0, b'{"until":7}')


def test_upcast_keeps_raw_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ev.RolloutFinished, "VERSION", 2)
    monkeypatch.setitem(UPCASTERS, ("rollout_finished", 1), lambda old: {**old, "err_message": "upcast"})
    old = rb'{"status":"success","sample":{"a":["\ud800",1e308]},"trajectory":null}'
    read = decode("rollout_finished", 1, old)
    assert isinstance(read, ev.RolloutFinished)
    assert read.err_message == "upcast"
    assert read.trajectory is None
    assert read.sample is not None
    assert loads(bytes(read.sample)) == {"a": ["\ud800", 1e308]}
