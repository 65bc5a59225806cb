"""The four limits of a rollout, each held against what its trace has used so far."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from rollbook.sdk.values import shown
from rollbook.tasks.checks import check_whole

__all__ = ["LIMIT_NAMES", "RolloutLimits", "checked_limits"]


class Used(Protocol):
    """What the limits read of a trace."""

    @property
    def num_turns(self) -> int: ...
    @property
    def num_input_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_total_tokens(self) -> int: ...


class RolloutLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many turns and tokens a rollout may use; None is unbounded.

    A limit is looked at before a turn, so the turn that crosses a token limit is still completed and the next one
    is refused; a limit of 0 refuses the first. Raises ``ValueError`` naming the limit for anything but a whole number
    from zero on.
    """

    max_turns: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_whole(getattr(self, name), name, least=0)

    def reached(self, trace: Used) -> str | None:
        """The name of the first limit that leaves no further turn, in the order of the fields; None if none does."""
        for name in self.__struct_fields__:
            limit: int | None = getattr(self, name)
            if limit is not None and getattr(trace, name.replace("max_", "num_")) >= limit:
                return name
        return None


def checked_limits(limits: Any) -> RolloutLimits:
    """What a rollout is given, no limits where it is None; raises ``TypeError`` for what is no `RolloutLimits`."""
    if limits is not None and not isinstance(limits, RolloutLimits):
        raise TypeError(f"limits must be RolloutLimits(max_turns=…), got {shown(limits)}")
    return limits or RolloutLimits()


LIMIT_NAMES: tuple[str, ...] = RolloutLimits.__struct_fields__
"""In the order in which they are looked at."""
