"""A rollout whose URL or key cannot be used fails as it is set up, and in the log with one line."""

from __future__ import annotations

import logging

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.rollout import Rollout
from tests.contract.tasks.playing import PROMPT, Acting, Bare, Stage, ask_once, played

PLACE = "files.invalid/secretpath123"


@pytest.mark.parametrize(
    ("url", "key", "says"),
    [
        (f"ftp://{PLACE}", None, "chat_completions_url must be an http or https URL with a host"),
        (f"http://[{PLACE}", None, "chat_completions_url must be an http or https URL with a host"),
        (f"http://{PLACE}", "kéy", "api_key must be printable ASCII text"),
    ],
)
async def test_what_cannot_be_used_is_told_without_a_traceback(
    stage: Stage, caplog: pytest.LogCaptureFixture, url: str, key: str | None, says: str
) -> None:
    rollout = Rollout(
        Bare(),
        TaskData(id="t-1", prompt=PROMPT),
        Acting(ask_once),
        stage.runtime,
        chat_completions_url=url,
        api_key=key,
        endpoint=stage.endpoint,
        rollout_id="r-1",
    )
    with caplog.at_level(logging.ERROR):
        trace = await played(rollout)
    [error] = trace.errors
    assert (error.stage, error.category) == ("setup", "validation_error")
    assert says in error.message
    [record] = caplog.records
    assert record.exc_info is None
    assert record.getMessage() == f"rollout r-1: setup failed: {error.message}"
    assert "secretpath123" not in f"{error.message} {record.getMessage()}"
