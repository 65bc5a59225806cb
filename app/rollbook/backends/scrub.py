"""Taking a rollout's key and policy URL out of error texts, tracebacks and logs."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

from rollbook.sdk.context import RolloutContext

SECRET_MIN_CHARS = 12
"""Shorter keys are left alone: replacing them would garble ordinary words."""

SecretTexts = tuple[tuple[str, str], ...]
"""Every form of a secret with what replaces it, the longest first."""


@lru_cache(maxsize=512)
def secret_texts(chat_completions_url: str, api_key: str | None) -> SecretTexts:
    """The key, the URL, and the URL's parts that may be a capability of their own.

    Libraries print URLs in pieces and in other encodings, hence the parts, plain and percent-encoded.
    """
    names = dict.fromkeys(_url_secrets(chat_completions_url), "[chat_completions_url]")
    names[api_key or ""] = "[llm_api_key]"
    forms = {
        form: name
        for secret, name in names.items()
        for form in (secret, quote(secret, safe="", errors="replace"), unquote(secret))
        if len(form) >= SECRET_MIN_CHARS
    }
    return joined(tuple(forms.items()))


def joined(*parts: SecretTexts) -> SecretTexts:
    """Several secrets' texts as one, the longest first."""
    forms = {form: name for texts in parts for form, name in texts}
    return tuple(sorted(forms.items(), key=lambda item: len(item[0]), reverse=True))


def scrub(text: str, secrets: SecretTexts) -> str:
    """Return `text` with every secret replaced by its name."""
    for form, name in secrets:
        if form in text:
            text = text.replace(form, name)
    return text


def scrubbed(text: str, ctx: RolloutContext) -> str:
    """Return `text` without the secrets of `ctx`; lone surrogates, which no log file takes, become question marks."""
    clean = scrub(text, secret_texts(ctx.chat_completions_url, ctx.api_key))
    return clean.encode("utf-8", "replace").decode()


def _url_secrets(url: str) -> list[str]:
    """The URL, its path with the query, and each of its parts."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL at all, so it has no parts
        return [url]
    values = [pair.partition("=")[2] for pair in parts.query.split("&")]
    tail = url.partition(parts.netloc)[2] if parts.netloc else ""
    user_info = [parts.username or "", parts.password or ""]
    return [url, url.rstrip("/"), tail, parts.path, parts.query, *parts.path.split("/"), *values, *user_info]
