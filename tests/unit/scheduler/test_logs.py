"""What user code prints and logs is scrubbed of its secrets, also a while after its rollout is over."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from rollbook.scheduler.runner.logs import REMEMBERED_ENDS, ScrubbingFilter, SecretRegistry, scrub_streams

SECRET = "sk-0123456789abcdef"
PARTS = ((SECRET, "[llm_api_key]"),)


@pytest.fixture
def secrets() -> SecretRegistry:
    return SecretRegistry()


def capture(monkeypatch: pytest.MonkeyPatch, secrets: SecretRegistry) -> io.StringIO:
    """What reaches the standard streams from now on. (Not a fixture: pytest puts its own streams in after those.)"""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    scrub_streams(secrets)
    return stream


def test_lines_are_scrubbed_while_a_rollout_runs(secrets: SecretRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = capture(monkeypatch, secrets)
    secrets.add(1, PARTS)
    print("key", SECRET)
    sys.stderr.write(SECRET[:5])
    sys.stderr.write(SECRET[5:] + "\n")
    assert printed.getvalue() == "key [llm_api_key]\n[llm_api_key]\n"


def test_line_that_ends_after_its_rollout_is_scrubbed(secrets: SecretRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = capture(monkeypatch, secrets)
    secrets.add(1, PARTS)
    print("key", SECRET, end="")
    secrets.remove(1)
    print()
    print("late", SECRET)
    assert printed.getvalue() == "key [llm_api_key]\nlate [llm_api_key]\n"


def test_records_and_tracebacks_are_scrubbed_after_the_end_too(secrets: SecretRegistry) -> None:
    secrets.add(1, PARTS)
    secrets.remove(1)
    try:
        raise ValueError(SECRET)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "cannot use %s", (SECRET,), sys.exc_info())
    assert ScrubbingFilter(secrets).filter(record)
    text = logging.Formatter().format(record)
    assert SECRET not in text
    assert text.startswith("cannot use [llm_api_key]")


def test_only_the_last_ended_rollouts_are_remembered(secrets: SecretRegistry) -> None:
    for key in range(REMEMBERED_ENDS + 1):
        secrets.add(key, ((f"secret-number-{key}", "[x]"),))
        secrets.remove(key)
    assert len(secrets.texts) == REMEMBERED_ENDS
    assert ("secret-number-0", "[x]") not in secrets.texts


def test_longer_secrets_of_any_rollout_come_first(secrets: SecretRegistry) -> None:
    secrets.add(1, (("https://x/abcdef", "[short]"),))
    secrets.add(2, (("https://x/abcdef/ghi", "[long]"),))
    assert [name for _, name in secrets.texts] == ["[long]", "[short]"]
