"""Secrets taken out of texts."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.backends.recording import Calls
from rollbook.scrub import KEY_MIN_CHARS, URL_PART_MIN_CHARS, scrub, scrub_body, secret_texts
from rollbook.sdk.context import RolloutContext

KEY = "sk-0123456789abcdef"
CAPABILITY = "cap/0123456789abcdef"
CONTEXT = RolloutContext(f"https://user:passw0rd-long-one@host.example/v1/{CAPABILITY}?token=tok%20en-0123456789", KEY)


def scrubbed(text: str, context: RolloutContext) -> str:
    return Calls(context).scrubbed(text)


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


def test_short_keys_and_short_parts_of_urls_stay_since_replacing_them_would_garble_words() -> None:
    key, part = "k" * (KEY_MIN_CHARS - 1), "p" * (URL_PART_MIN_CHARS - 1)
    text = f"{key} and {part} stay"
    assert scrub(text, secret_texts(f"http://h/v1/{part}", key)) == text


def test_keys_of_eight_characters_and_parts_of_twelve_are_replaced() -> None:
    key, part = "k" * 8, "p" * 12
    secrets = secret_texts(f"http://h/v1/{part}", key)
    assert scrub(f"{key} and {part}", secrets) == "[llm_api_key] and [chat_completions_url]"


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/api/v1/chat/completions/", "/openai/v1/chat/completions", "/v1beta/openai/models"],
)
def test_paths_that_all_model_servers_have_are_no_secrets(path: str) -> None:
    text = f"no route POST {path}, see {path}"
    for query in ("", "?key=abc"):
        assert scrub(text, secret_texts(f"http://127.0.0.1:8000{path}{query}", "sk-0123456789")) == text


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("/echo/secretpath123/v1", "at /echo/secretpath123/v1/chat/completions"),
        ("/tenants/abc/xyz/v1/chat/completions", "at /tenants/abc/xyz/v1/models"),
        ("/v1?key=QUERYSECRET9", "at /v1/chat/completions?key=QUERYSECRET9&x=1"),
        ("/v1?QUERYSECRET9&n", "no parameter QUERYSECRET9"),
        ("/v1secrettoken/chat", "at /v1secrettoken"),
    ],
)
def test_parts_of_the_url_are_replaced_in_front_of_another_end(base: str, said: str) -> None:
    clean = scrub(said, secret_texts(f"http://h{base}", None))
    assert "[chat_completions_url]" in clean
    assert not any(part in clean for part in ("secretpath123", "abc/xyz", "QUERYSECRET9", "secrettoken"))


def test_names_are_the_callers_where_it_has_some() -> None:
    secrets = secret_texts("http://h/secretpath123", "key-0123456789", url_name="[URL]", key_name="[KEY]")
    assert scrub("/secretpath123 key-0123456789", secrets) == "[URL] [KEY]"


@pytest.mark.parametrize("body", [b"\xff\xfe \x00 none", '{"a": "ü \\u00fc \\/"}'.encode(), b""])
def test_body_without_secrets_stays_byte_for_byte(body: bytes) -> None:
    assert scrub_body(body, secret_texts("http://h/secretpath123", "key-0123456789")) == body


def test_secrets_are_taken_out_of_bodies_of_any_bytes() -> None:
    secrets = secret_texts("http://h/a/secret/path/v1", "key-0123456789")
    body = b'\xff{"at": "\\/a\\/secret\\/path\\/v1\\/models", "key": "key-0123456789"}'
    assert scrub_body(body, secrets) == b'\xff{"at": "[chat_completions_url]\\/models", "key": "[llm_api_key]"}'


def test_longest_secret_goes_first_so_that_no_rest_is_left() -> None:
    url = CONTEXT.chat_completions_url
    assert scrub(f"at {url}", secret_texts(url, KEY)) == "at [chat_completions_url]"


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="[]"), min_size=KEY_MIN_CHARS, max_size=40),
    st.text(max_size=20),
    st.text(max_size=20),
)
def test_no_key_of_eight_characters_survives(key: str, before: str, after: str) -> None:
    secrets = secret_texts("http://h/", key)
    assert key not in scrub(before + key + after, secrets)
    assert quote(key, safe="") not in scrub(before + quote(key, safe="") + after, secrets)


def test_lone_surrogates_in_secrets_are_no_error() -> None:
    key = "\ud800" * KEY_MIN_CHARS
    assert scrub(f"x{key}", secret_texts("http://h/", key)) == "x[llm_api_key]"
