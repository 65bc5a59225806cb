"""Where a rollout's calls go: its URL, its key, and how what a program appends is appended there too."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from rollbook.scrub import scrub, scrub_body, secret_texts

from .dialects import openai_chat

_PLAIN_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[\w.~:@-]+)*/?", re.ASCII)
"""One that no server reads in another way than we do: nothing is encoded, doubled, or leads upwards."""


class RouteError(ValueError):
    """A rollout's URL or key cannot be used: whoever asked for the rollout must give another. No code is at fault."""


class Quirks(Struct):
    """What was learned about an upstream."""

    no_stream_options: bool = False
    """It refuses requests that have them."""


class Route(Struct, frozen=True):
    """A rollout's upstream."""

    url: str
    api_key: str | None = None
    read_timeout_sec: float | None = None
    stand_in: str | None = None
    """What the program has in place of the key, where it may have credentials of its own beside it."""
    quirks: Quirks = msgspec.field(default_factory=Quirks)

    def __post_init__(self) -> None:
        if not _is_http(self.url):
            raise RouteError("the rollout's chat_completions_url must be an http or https URL with a host")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise RouteError("the rollout's api_key must be printable ASCII text: it is sent in a header")

    def serves(self, method: str, rest: str) -> bool:
        """Whether a program may send this, `rest` being the path after the session's secret.

        A program that must notice nothing may send whatever it would send without us. A task's has model calls and the
        list of models: all else would reach the model server with the rollout's key and past its limits and hooks.
        """
        if self.stand_in is not None:
            return True
        if _PLAIN_PATH.fullmatch(rest) is None:
            return False
        models = method in ("GET", "HEAD") and (rest.removeprefix("/v1") + "/").startswith("/models/")
        return models or self.is_call(method, rest)

    def is_call(self, method: str, rest: str) -> bool:
        """Whether this is a model call."""
        return method == "POST" and (rest in ("", "/") or rest.removesuffix("/").endswith(openai_chat.PATH))

    def target(self, rest: str, *, query: str) -> str:
        """The URL upstream for what a program appended.

        `rest` is the path after the session's secret. The rollout's URL is opaque: what is appended here is appended
        there, unless it ends so already. A leading ``/v1`` belongs to the session's `base_url`, not to the rollout's
        URL, unless that URL has no path at all and so needs one.
        """
        scheme, host, path, own_query, _ = urlsplit(self.url)
        if rest == "/v1" or rest.startswith("/v1/"):
            whole, rest = rest, rest.removeprefix("/v1")
            if path in ("", "/"):
                rest = whole
        path = path.removesuffix("/") if rest else path
        # A rollout's URL may name the completions themselves; its other resources are their neighbours.
        if rest and not path.endswith(rest.removesuffix("/")):
            path = path.removesuffix(openai_chat.PATH) + rest
        return urlunsplit((scheme, host, path, "&".join(part for part in (own_query, query) if part), ""))

    def hide(self, text: str) -> str:
        """A text without the rollout's key and URL, and without parts of these."""
        return scrub(text, secret_texts(self.url, self.api_key))

    def hide_in_body(self, body: bytes) -> bytes:
        """The same for a body: servers like to repeat the key that they refuse, and the path that was asked for."""
        return scrub_body(body, secret_texts(self.url, self.api_key))


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
