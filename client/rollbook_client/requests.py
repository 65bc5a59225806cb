"""Builds request bodies and paths from what a caller passes. No I/O."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import msgspec

from rollbook_client.messages import RolloutInitRequest


def encode_admission(fields: dict[str, Any]) -> bytes:
    """The JSON body that asks for a rollout, from `RolloutInitRequest`'s fields.

    Lone surrogates travel as ASCII escapes and arrive unchanged.

    Raises:
        ValueError: a field has the wrong type or is out of range, or a value has no JSON form (NaN, Infinity, an
            arbitrary object, a structure that contains itself or is nested too deep).
    """
    try:
        # The detour over builtins writes what msgspec knows (dates, structs, enums); the standard library's encoder
        # is the one that refuses NaN instead of turning it into null.
        plain = msgspec.to_builtins(msgspec.convert(fields, RolloutInitRequest), str_keys=True)
        return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
    except msgspec.ValidationError as error:
        raise ValueError(f"the rollout request is not valid: {error}; correct that argument") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the rollout request cannot be written as JSON: {error}; pass only JSON values in initial_messages, "
            "metadata and extra_fields"
        ) from error


def result_path(rollout_id: str) -> str:
    """The path a rollout's result is polled at; what has a meaning in URLs is percent-encoded in the id."""
    return f"/rollout/{quote(rollout_id, safe='')}/result"
