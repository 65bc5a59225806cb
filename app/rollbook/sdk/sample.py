"""The sample: the conversation and the grading results of one rollout, as authors read and change it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rollbook.sdk.values import MessageDict, finite_number, flag, message_list, optional_text, shown, string_keyed
from rollbook_client.jsons import copied

logger = logging.getLogger(__name__)


class _Snapshot:
    """Stands for "copy the messages"; None is taken, it turns trajectory saving off."""


_SNAPSHOT: Final = _Snapshot()


class RolloutSample:
    """One rollout's conversation, label, reward and measurements.

    Mutable; an assignment is checked as the constructor checks (``ValueError``), changes inside `metrics` and
    `extra_fields` are not. `trajectory_messages` defaults to a snapshot of `messages`; an explicit None turns
    trajectory saving off. `remove_sample` keeps the sample out of training; its reward is not answered.
    """

    __slots__ = ("extra_fields", "label", "messages", "metrics", "remove_sample", "reward", "trajectory_messages")
    messages: list[MessageDict]
    trajectory_messages: list[MessageDict] | None
    label: str | None
    reward: float | None
    remove_sample: bool
    metrics: dict[str, Any]
    extra_fields: dict[str, Any]

    def __init__(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        trajectory_messages: Sequence[Mapping[str, Any]] | _Snapshot | None = _SNAPSHOT,
        label: str | None = None,
        reward: float | None = None,
        remove_sample: bool = False,
        metrics: Mapping[str, Any] | None = None,
        extra_fields: Mapping[str, Any] | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "messages", message_list(messages, "messages"))
        if isinstance(trajectory_messages, _Snapshot):
            put(self, "trajectory_messages", _snapshot(self.messages))
        else:
            self.trajectory_messages = trajectory_messages  # type: ignore[assignment]  # converted on assignment
        put(self, "label", optional_text(label, "label"))
        put(self, "reward", None if reward is None else finite_number(reward, "reward"))
        put(self, "remove_sample", flag(remove_sample, "remove_sample"))
        put(self, "metrics", {} if metrics is None else string_keyed(metrics, "metrics"))
        put(self, "extra_fields", {} if extra_fields is None else string_keyed(extra_fields, "extra_fields"))

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is None:
            # ValueError, not AttributeError: a misspelt field is the author's mistake in the data, and is reported so.
            raise ValueError(f"a RolloutSample has no field {name!r}; put values of your own into extra_fields")
        object.__setattr__(self, name, check(value, name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RolloutSample):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable values are no dict keys

    def __repr__(self) -> str:
        return f"RolloutSample({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


def coerce_sample(value: Any) -> RolloutSample | None:
    """Take a sample as a source or a grader left it: a sample, a dict of its fields, or None.

    Raises ``TypeError`` for any other type and for unknown fields, ``ValueError`` for bad values.
    """
    if value is None or isinstance(value, RolloutSample):
        return value
    if isinstance(value, Mapping):
        return RolloutSample(**value)
    raise TypeError(f"a sample must be a RolloutSample or None, got {shown(value)}")


def _optional_messages(value: Any, what: str) -> list[MessageDict] | None:
    return None if value is None else message_list(value, what)


def _optional_number(value: Any, what: str) -> float | None:
    return None if value is None else finite_number(value, what)


_CHECKS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "messages": message_list,
    "trajectory_messages": _optional_messages,
    "label": optional_text,
    "reward": _optional_number,
    "remove_sample": flag,
    "metrics": string_keyed,
    "extra_fields": string_keyed,
}


def _snapshot(messages: list[MessageDict]) -> list[MessageDict] | None:
    """A copy that later changes to the messages leave alone, or None (logged) where an object refuses to be copied."""
    try:
        return [copied(message) for message in messages]
    except Exception:  # user objects may raise anything from their copy hooks; the sample itself is unharmed
        logger.warning("the messages cannot be copied, so no trajectory is saved for this sample", exc_info=True)
        return None
