"""Secrets taken out of texts."""

import pytest

from rollbook.backends.scrub import scrubbed
from rollbook.sdk.context import RolloutContext

KEY = "sk-0123456789abcdef"
CAPABILITY = "cap/0123456789abcdef"
CONTEXT = RolloutContext(f"https://user:passw0rd-long-one@host.example/v1/{CAPABILITY}?token=tok%20en-0123456789", KEY)


@pytest.mark.parametrize(
    "text",
    [
        f"the key is {KEY}",
        f"GET {CONTEXT.chat_completions_url} failed",
        "GET /v1/cap/0123456789abcdef?token=tok%20en-0123456789 failed",
        "segment 0123456789abcdef alone",
        "decoded tok en-0123456789",
        "user:passw0rd-long-one",
        f"doubled {KEY}{KEY}",
    ],
)
def test_secret_is_replaced(text: str) -> None:
    clean = scrubbed(text, CONTEXT)
    assert "[" in clean
    assert all(secret not in clean for secret in (KEY, "0123456789abcdef", "0123456789", "passw0rd-long-one"))


def test_ordinary_words_and_short_keys_stay() -> None:
    context = RolloutContext("http://127.0.0.1:9/v1", "short")
    text = "a short text about /v1 on 127.0.0.1"
    assert scrubbed(text, context) == text


def test_text_fits_every_log_and_answer_afterwards() -> None:
    assert scrubbed("bad é \ud800", CONTEXT) == "bad é ?"


def test_what_is_no_url_is_replaced_as_a_whole() -> None:
    assert (
        scrubbed("see http://[broken-address", RolloutContext("http://[broken-address")) == "see [chat_completions_url]"
    )
