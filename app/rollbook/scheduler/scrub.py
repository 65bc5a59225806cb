"""Keeping a rollout's key and URL out of error texts and logs."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

MIN_SCRUBBED = 12
"""Shorter secrets are left in texts: replacing them would garble words."""
SCRUBBED = "[secret]"


def secret_texts(chat_completions_url: str, llm_api_key: str | None) -> tuple[str, ...]:
    """Every text that must not appear in messages and logs, longest first.

    Of the URL that is all of it, what follows the host, and each long part of path, query and user info, plain and
    percent-encoded: a capability is still one when an HTTP library prints it differently.
    """
    found = {llm_api_key or "", chat_completions_url}
    try:
        parts = urlsplit(chat_completions_url)
    except ValueError:
        parts = urlsplit("")
    found.update((parts.path, parts.query, parts.username or "", parts.password or ""))
    found.update(parts.path.split("/"))
    found.update(piece.partition("=")[2] for piece in parts.query.split("&"))
    forms = {form for text in found for form in (text, _quoted(text, ""), _quoted(text, "/"), unquote(text))}
    return tuple(sorted((text for text in forms if len(text) >= MIN_SCRUBBED), key=len, reverse=True))


def scrub(text: str, secret_parts: tuple[str, ...]) -> str:
    """``text`` with every secret replaced."""
    for part in secret_parts:
        if part in text:
            text = text.replace(part, SCRUBBED)
    return text


def _quoted(text: str, safe: str) -> str:
    return quote(text, safe=safe, errors="replace")
