"""Taking a rollout's key and policy URL out of what is kept, shown or passed on: the one rule for all of these."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

KEY_MIN_CHARS = 8
"""Shorter keys are left alone: replacing them would garble ordinary words."""
URL_PART_MIN_CHARS = 12
"""Shorter parts of a URL are left alone: those are ``completions`` and ``deployments`` more often than secrets."""

_EVERYBODYS = re.compile(r"(/(v\d{1,2}((alpha|beta)\d{0,2})?|api|openai|chat|completions|models)?)*", re.ASCII)
"""What model servers' paths have in common; a message that has it tells nobody's secret."""

SecretTexts = tuple[tuple[str, str], ...]
"""Every form of a secret with what replaces it, the longest first."""


@lru_cache(maxsize=512)
def secret_texts(
    url: str, api_key: str | None, *, url_name: str = "[chat_completions_url]", key_name: str = "[llm_api_key]"
) -> SecretTexts:
    """The key, the URL, and the URL's parts that may be a capability of their own, each with its name.

    Libraries and servers print URLs in pieces and in other encodings, hence the parts, plain and percent-encoded.
    """
    forms = _forms(_url_secrets(url), url_name, least=URL_PART_MIN_CHARS)
    return joined((*forms, *_forms([api_key or ""], key_name, least=KEY_MIN_CHARS)))


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


def scrub_body(body: bytes, secrets: SecretTexts) -> bytes:
    """Return a body, JSON or any bytes, with every secret replaced by its name; all else stays byte for byte."""
    text = scrub(body.decode("utf-8", "surrogateescape"), secrets)
    if "\\/" in text:  # as some servers write a slash in JSON
        text = scrub(text, tuple((form.replace("/", "\\/"), name) for form, name in secrets))
    return text.encode("utf-8", "surrogateescape")


def _forms(secrets: list[str], name: str, *, least: int) -> SecretTexts:
    return tuple(
        (form, name)
        for secret in secrets
        for form in (secret, quote(secret, safe="", errors="replace"), unquote(secret))
        if len(form) >= least
    )


def _url_secrets(url: str) -> list[str]:
    """The URL, its path with the query, and each of its parts, without what the paths of all model servers have."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL at all, so it has no parts
        return [url]
    secrets = [url, url.rstrip("/"), parts.query, parts.username or "", parts.password or ""]
    if parts.query and parts.netloc:
        secrets.append(url.partition(parts.netloc)[2])
    for pair in parts.query.split("&"):
        name, equals, value = pair.partition("=")
        secrets.append(value if equals else name)
    if _EVERYBODYS.fullmatch(parts.path) is None:
        # Servers name the path of what they were asked for, which may have another end than the URL.
        secrets += [parts.path, _own_part(parts.path), *parts.path.split("/")]
    return secrets


def _own_part(path: str) -> str:
    """A path without the ordinary end of it."""
    while True:
        head, slash, last = path.rpartition("/")
        if not slash or _EVERYBODYS.fullmatch(f"/{last}") is None:
            return path
        path = head
