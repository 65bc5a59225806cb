"""What one task consists of: id and prompt, how long stages may take, what it may use, and fields of its own."""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec import Struct, field

from rollbook.backends.json_form import is_plain, plain
from rollbook.sdk.values import MessageDict, message_list, shown
from rollbook.tasks.checks import check_number, check_whole
from rollbook.tasks.names import near_name

__all__ = ["NetworkPolicy", "Resources", "TaskData", "Timeouts", "checked_messages"]

log = logging.getLogger(__name__)

_TOLD_AT_MOST = 1000
_told: set[tuple[type, str]] = set()
"""Fields that were warned of. Rows come from trainers: not for ever, and the same one but once."""
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that each stage may take, above zero; None is unbounded.

    `setup` is shared by the set-up of task and harness, `agent` is spent by all segments together.
    """

    setup: float | None = None
    agent: float | None = None
    finalize: float | None = None
    scoring: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_number(getattr(self, name), f"timeouts.{name}", unit="seconds")


class Resources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the runtime may use; None leaves it open. Which of these are enforced is the runtime's to say."""

    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None

    def __post_init__(self) -> None:
        check_number(self.cpus, "resources.cpus", unit="a number")
        for name in ("memory_mb", "disk_mb"):
            check_whole(getattr(self, name), f"resources.{name}", least=1)


class NetworkPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which hosts a program may reach while it runs: those of `allow`, less those of `deny`.

    A host is a name, an address, ``*.example.com`` for the names below it, or ``*`` for all of them. The default
    allows none; the framework's own routes are always open.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            hosts = getattr(self, name)
            if not isinstance(hosts, Sequence) or isinstance(hosts, (str, bytes)):
                raise ValueError(f"network.{name} must be a list of hosts, got {shown(hosts)}")
            for host in hosts:
                if not isinstance(host, str) or (host != "*" and not _HOST.fullmatch(host)):
                    raise ValueError(
                        f"network.{name} has {shown(host)}; write the host alone, as example.com, *.example.com or *"
                    )
            msgspec.structs.force_setattr(self, name, tuple(host.lower() for host in hosts))

    @property
    def isolated(self) -> bool:
        """Whether no host at all may be reached."""
        return not self.allow or "*" in self.deny

    @property
    def unrestricted(self) -> bool:
        """Whether every host may be reached."""
        return "*" in self.allow and not self.deny

    def allows(self, host: str) -> bool:
        """Whether a program may reach this host."""
        host = host.lower().rstrip(".")
        return any(_fits(host, pattern) for pattern in self.allow) and not any(
            _fits(host, pattern) for pattern in self.deny
        )


class TaskData(Struct, frozen=True, kw_only=True):
    """One task of a taskset. Frozen: set-up, hooks and scores of one rollout cannot disturb the next.

    Fields of your own are given in `extra` and read as attributes (``data.answer``), or declared by a subclass::

        class Sum(TaskData, frozen=True, kw_only=True):
            answer: int

    `extra` must have a JSON form. Raises ``ValueError`` naming the field for a value that does not fit.
    """

    id: str
    name: str | None = None
    prompt: str | list[MessageDict] | None = None
    """Text of the user's first message, or whole messages; None, or no messages, where a user opens the exchange."""
    system_prompt: str | None = None
    timeouts: Timeouts = Timeouts()
    resources: Resources = Resources()
    network: NetworkPolicy = NetworkPolicy()
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        who = type(self).__name__
        for name in ("id", "name", "system_prompt"):
            value = getattr(self, name)
            if not (isinstance(value, str) or (value is None and name != "id")):
                raise ValueError(f"{who}.{name} must be text, got {shown(value)}")
        if not self.id:
            raise ValueError(f"{who}.id is empty; give each task an id that no other task of its set has")
        if self.prompt == "":
            raise ValueError(f"{who}.prompt is empty text; leave it out (None) where a user opens the exchange")
        if self.prompt is not None and not isinstance(self.prompt, str):
            msgspec.structs.force_setattr(self, "prompt", checked_messages(self.prompt, f"{who}.prompt") or None)
        for name, kind in (("timeouts", Timeouts), ("resources", Resources), ("network", NetworkPolicy)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                msgspec.structs.force_setattr(self, name, _part(value, kind, f"{who}.{name}"))
        msgspec.structs.force_setattr(self, "extra", self._own_extra(who))

    def _own_extra(self, who: str) -> dict[str, Any]:
        if not isinstance(self.extra, Mapping):
            raise ValueError(f"{who}.extra must be a dict, got {shown(self.extra)}")
        own: dict[str, Any] = {}
        for name, value in self.extra.items():
            if not isinstance(name, str):
                raise ValueError(f"{who}.extra must have string keys, got the key {shown(name)}")
            if name in self.__struct_fields__:
                raise ValueError(f"{who}.extra has {name!r}, which is a field already; pass {name}=… instead")
            own[name] = _plain(value, f"{who}.extra[{name!r}]")
        return own

    def __getattr__(self, name: str) -> Any:
        # Reached only for what is no field and no method. A struct that is being copied has no `extra` yet.
        if name != "extra" and not name.startswith("__") and name in self.extra:
            return self.extra[name]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}; put it into extra, or declare it")

    def messages(self) -> list[MessageDict]:
        """What a rollout starts from, as messages of its own: the system prompt, then the prompt."""
        before: list[MessageDict] = []
        if self.system_prompt is not None:
            before.append({"role": "system", "content": self.system_prompt})
        if isinstance(self.prompt, str):
            return [*before, {"role": "user", "content": self.prompt}]
        return [*before, *plain(self.prompt or [])]

    def to_json(self) -> dict[str, Any]:
        """The task as plain data: every field, and the extra ones beside them. `from_json` reads it.

        Raises ``ValueError`` naming the field for a declared field without JSON form.
        """
        who = type(self).__name__
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "extra"}
        made = {name: _as_json(value, f"{who}.{name}") for name, value in fields.items()}
        return {**made, **plain(self.extra)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read a row: what is no declared field goes to `extra`, with a warning in the log where it may be a slip.

        Raises ``ValueError`` naming the field for a value that does not fit.
        """
        if not isinstance(value, Mapping):
            raise ValueError(f"{cls.__name__} is made of a mapping, got {shown(value)}")
        known = {name: item for name, item in value.items() if name in cls.__struct_fields__ and name != "extra"}
        extra = {name: item for name, item in value.items() if name not in known}
        _tell_of_slips(cls, value)
        if isinstance(nested := extra.get("extra"), Mapping):
            del extra["extra"]
            extra |= nested
        try:
            return msgspec.convert(known | {"extra": extra}, cls)
        except msgspec.ValidationError as error:
            raise ValueError(_named(error, cls.__name__)) from error


def _tell_of_slips(cls: type[TaskData], row: Mapping[str, Any]) -> None:
    """Warn of fields that are kept as the row's own and may be slips of those that mean something; once for each."""
    for name in row:
        if not isinstance(name, str) or name in cls.__struct_fields__ or (cls, name) in _told:
            continue
        near = near_name(name, cls.__struct_fields__)
        if near is not None and near not in row and len(_told) < _TOLD_AT_MOST:
            _told.add((cls, name))
            log.warning(
                "the row %.80r has the field %r, which %s does not declare, so it is kept in extra and does nothing; "
                "if it is meant to be %r, write it so",
                row.get("id"),
                name,
                cls.__name__,
                near,
            )


def _fits(host: str, pattern: str) -> bool:
    return pattern == "*" or host == pattern or (pattern.startswith("*.") and fnmatch.fnmatchcase(host, pattern))


def checked_messages(value: Any, what: str) -> list[MessageDict]:
    """Messages as JSON data of their own; raises ``ValueError``, beginning with `what`, for what are none."""
    messages = message_list(value, what)
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise ValueError(f"{what}[{index}] has no role; write it as {{'role': 'user', 'content': …}}")
        messages[index] = _plain(message, f"{what}[{index}]")
    return messages


def _part[T](value: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_named(error, what)) from error


def _as_json(value: Any, what: str) -> Any:
    try:
        value = msgspec.to_builtins(value, str_keys=True)  # first: structs inside lists are unknown to `plain`
    except TypeError as error:
        raise ValueError(f"{what} has no JSON form: {error}; got {shown(value)}") from error
    return _plain(value, what)


def _plain(value: Any, what: str) -> Any:
    try:
        made = plain(value)
        if is_plain(made):
            return made
        reason = "it holds a number that is not finite"
    except (TypeError, ValueError, RecursionError, UnicodeDecodeError) as error:
        reason = str(error)
    raise ValueError(f"{what} has no JSON form: {reason}; got {shown(value)}")


def _named(error: msgspec.ValidationError, what: str) -> str:
    """msgspec says where in its own notation (``$.prompt[0]``); this says it as a reader of Python would."""
    text, _, place = str(error).partition(" - at `$")
    where = what + place.rstrip("`")
    owner, _, last = where.rpartition(".")
    if text.startswith(f"{last}."):  # our own checks have said which field of it
        return f"{owner}.{text}"
    return text if text.startswith(f"{what}.") else f"{where}: {text}"
