"""Taking a rollout's key and policy URL out of error texts and tracebacks."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from rollbook.sdk.context import RolloutContext

SECRET_MIN_CHARS = 12
"""Shorter keys are left alone: replacing them would garble ordinary words."""


def scrubbed(text: str, ctx: RolloutContext) -> str:
    """Return `text` without the key of `ctx`, its URL, and the URL's parts that may be a capability of their own.

    Libraries print URLs in pieces and in other encodings, hence the parts, plain and percent-encoded. Lone surrogates
    become question marks: no log file and no answer takes them.
    """
    names = dict.fromkeys(_url_secrets(ctx.chat_completions_url), "[chat_completions_url]")
    names[ctx.api_key or ""] = "[llm_api_key]"
    for secret in sorted(names, key=len, reverse=True):
        for form in (secret, quote(secret, safe="", errors="replace"), unquote(secret)):
            if len(form) >= SECRET_MIN_CHARS:
                text = text.replace(form, names[secret])
    return text.encode("utf-8", "replace").decode()


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
