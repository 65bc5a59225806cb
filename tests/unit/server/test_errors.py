"""The one table from errors to statuses."""

from __future__ import annotations

import logging

import pytest

from rollbook.ledger import refusals
from rollbook.server.answers import error_answer, json_bytes
from rollbook.server.errors import INTERNAL_ERROR, ApiError, as_api_error
from rollbook.server.outages import Outages

EXPECTED = {
    refusals.UnknownRollout("r"): (404, "unknown rollout_id"),
    refusals.WrongLease("r"): (403, "invalid polling lease"),
    refusals.RolloutKnown("r"): (409, "rollout_id is already registered"),
    refusals.QueueFull("q", 3): (429, "rollout queue is full; retry later"),
    refusals.CommandFailed("x"): (422, "the ledger cannot store this request's data; see the server's log"),
    refusals.LedgerUnavailable("disk full"): (503, "the ledger is not available now; retry later"),
}
OUTAGES = Outages(lasts=lambda: False)
RETRY_AFTER = {429: b"5", 503: b"1"}


@pytest.mark.parametrize("error", EXPECTED, ids=lambda error: type(error).__name__)
async def test_each_error_of_the_ledger_has_its_status_and_words(error: refusals.LedgerError) -> None:
    answer = as_api_error(error, OUTAGES)
    assert (answer.status, answer.detail) == EXPECTED[error]
    assert dict(answer.headers) == (
        {b"retry-after": RETRY_AFTER[answer.status]} if answer.status in RETRY_AFTER else {}
    )


def test_unforeseen_error_is_logged_and_tells_the_client_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = as_api_error(KeyError("inner details"), OUTAGES)
    assert (answer.status, answer.detail) == (500, INTERNAL_ERROR)
    assert "inner details" in caplog.text


def test_api_error_is_answered_as_it_is() -> None:
    error = ApiError(418, "short and stout", headers=((b"allow", b"GET"),))
    answer = error_answer(as_api_error(error, OUTAGES))
    assert (answer.status, answer.body, answer.headers) == (418, b'{"detail":"short and stout"}', ((b"allow", b"GET"),))


def test_text_without_utf8_form_makes_the_body_ascii() -> None:
    assert json_bytes({"a": "é"}) == '{"a":"é"}'.encode()
    assert json_bytes({"a": "é\ud800"}) == b'{"a":"\\u00e9\\ud800"}'
