"""Query strings as structs: each parameter with its type, range and default."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

import msgspec

from rollbook_client.statuses import RolloutStatus

from .bodies import convert

Position = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class EventsQuery(msgspec.Struct, frozen=True):
    """A page of events."""

    after: Annotated[Position, msgspec.Meta(description="The position (of one rollout: the seq) before the page.")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="How many at most; 4 MiB cut a page too.")] = 1_000


class RolloutsQuery(msgspec.Struct, frozen=True):
    """A page of rollouts."""

    status: Annotated[RolloutStatus | None, msgspec.Meta(description="Only of this status.")] = None
    queue: Annotated[str | None, msgspec.Meta(description="Only of this queue.")] = None
    prefix: Annotated[str | None, msgspec.Meta(description="Only ids that start with this.")] = None
    before: Annotated[Position | None, msgspec.Meta(description="The `next` of the page before.")] = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000, description="How many at most.")] = 100


def parse_query[T: msgspec.Struct](query_string: bytes, kind: type[T]) -> T:
    """The parameters; unknown ones are ignored, and of one that is given twice the last counts.

    Raises:
        ApiError: 422, a value is of the wrong type or out of its range.
    """
    # Bytes that are no UTF-8, and escapes of lone surrogates, become replacement characters here.
    given = dict(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True))
    return convert(given, kind, place="query", strict=False)
