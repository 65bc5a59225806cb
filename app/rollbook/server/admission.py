"""From an admission request to the ledger's command: what is public, what is sealed, and the polling token."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from rollbook.ledger.commands import Admit
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.secrets import (
    RolloutSecrets,
    SecretKeys,
    endpoint_digest,
    endpoint_origin,
    new_nonce,
    token_digest,
)
from rollbook.settings import ApiSettings
from rollbook_client.messages import MessageDict, RolloutInitRequest

from .answers import json_bytes
from .bodies import has_utf8
from .errors import wrong_shape

_sorting_encoder = msgspec.json.Encoder(order="deterministic")

MAX_TIMEOUT_SEC = 10.0**11
"""Longer timeouts, either way, are cut to this (some 3,000 years): times must fit the ledger's integers."""


class PublicRequest(msgspec.Struct, frozen=True):
    """What the admission event keeps of a request: all but the endpoint's URL and key."""

    initial_messages: list[MessageDict]
    label: str | None
    metadata: dict[str, Any] | None
    grade: bool
    agent_timeout_sec: float | None
    grader_timeout_sec: float | None
    extra_fields: dict[str, Any] | None


class Admission(msgspec.Struct, frozen=True):
    """The command that admits a rollout, and the polling tokens it may get, by their digests. They are in no record."""

    command: Admit
    tokens: dict[bytes, str]


def admission(
    request: RolloutInitRequest, settings: ApiSettings, keys: SecretKeys, *, idempotency_key: str | None = None
) -> Admission:
    """A request's admission. With an idempotency key its tokens follow from the key and the whole request, so the same
    request has the same token again, on every process and without any record of it.

    Raises:
        ApiError: 422, the URL or the key holds a lone surrogate: neither could ever be sent to an endpoint.
    """
    url = request.chat_completions_url
    for name, value in (("chat_completions_url", url), ("llm_api_key", request.llm_api_key)):
        if value is not None and not has_utf8(value):
            raise wrong_shape("body", name, msg=f"{name} contains a lone surrogate and has no UTF-8 form; remove it")
    public = PublicRequest(
        request.initial_messages,
        request.label,
        request.metadata,
        request.grade,
        request.agent_timeout_sec,
        request.grader_timeout_sec,
        request.extra_fields,
    )
    if idempotency_key is None:
        nonce = new_nonce()
        leases: tuple[tuple[str, str], ...] = ((nonce, keys.token(nonce)),)
    else:
        leases = keys.leases_for(_identity(request, public, idempotency_key))
    tokens = {token_digest(token): token for _, token in leases}
    digests = tuple(tokens)
    command = Admit(
        rollout_id=request.rollout_id,
        queue=settings.queue,
        max_queue_depth=settings.max_queue_depth,
        max_attempts=settings.max_attempts,
        lease_nonce=leases[0][0],
        lease_digest=digests[0],
        lease_timeout_us=int(settings.polling_lease_timeout_sec * MICROSECONDS),
        agent_timeout_us=timeout_us(request.agent_timeout_sec),
        label=request.label,
        endpoint_origin=endpoint_origin(url),
        endpoint_digest=endpoint_digest(url),
        request=json_bytes(public),
        sealed=keys.seal(RolloutSecrets(url, request.llm_api_key), request.rollout_id),
        idempotency_key=idempotency_key,
        same_digests=digests if idempotency_key is not None else (),
    )
    return Admission(command, tokens)


def _identity(request: RolloutInitRequest, public: PublicRequest, idempotency_key: str) -> bytes:
    """What makes two requests the same: all that was understood of them, in whatever order it was written."""
    whole = (idempotency_key, request.rollout_id, request.chat_completions_url, request.llm_api_key, public)
    try:
        return _sorting_encoder.encode(whole)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(whole), sort_keys=True).encode()


def timeout_us(timeout_sec: float | None) -> int | None:
    """Seconds as microseconds within the ledger's range; None stays None."""
    if timeout_sec is None:
        return None
    return int(max(-MAX_TIMEOUT_SEC, min(MAX_TIMEOUT_SEC, timeout_sec)) * MICROSECONDS)
