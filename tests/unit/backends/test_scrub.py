"""Secrets taken out of texts."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.backends.scrub import SECRET_MIN_CHARS, scrub, scrubbed, secret_texts
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


def test_short_secrets_stay_since_replacing_them_would_garble_words() -> None:
    short = "k" * (SECRET_MIN_CHARS - 1)
    assert scrub(f"{short} stays", secret_texts("http://h/", short)) == f"{short} stays"


def test_longest_secret_goes_first_so_that_no_rest_is_left() -> None:
    url = CONTEXT.chat_completions_url
    assert scrub(f"at {url}", secret_texts(url, KEY)) == "at [chat_completions_url]"


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="[]"), min_size=SECRET_MIN_CHARS, max_size=40),
    st.text(max_size=20),
    st.text(max_size=20),
)
def test_no_key_of_twelve_characters_survives(key: str, before: str, after: str) -> None:
    secrets = secret_texts("http://h/", key)
    assert key not in scrub(before + key + after, secrets)
    assert quote(key, safe="") not in scrub(before + quote(key, safe="") + after, secrets)


def test_lone_surrogates_in_secrets_are_no_error() -> None:
    key = "\ud800" * SECRET_MIN_CHARS
    assert scrub(f"x{key}", secret_texts("http://h/", key)) == "x[llm_api_key]"
