"""What a check found, for people and for scripts: each finding, then how much was looked at."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from . import output


class Checked(msgspec.Struct, frozen=True):
    """How much was looked at, and whether that ended early because enough was found.

    Of ``archived`` rollouts only what stands for their events was.
    """

    events: int
    rollouts: int
    archived: int
    more: bool


def verdict(checked: Checked, name: str, found: Sequence[msgspec.Struct], *, fine: str, json: bool) -> int:
    """Print it; the exit code, which is 1 where something was found."""
    if json:
        items = {f"{name}s": [_plain(item) for item in found]}
        output.put_json({"ok": not found, **msgspec.structs.asdict(checked), **items})
        return 1 if found else 0
    lines = [output.printable(str(item)) for item in found]
    more = " and perhaps more" if checked.more else ""
    said = f"{counted(len(found), name)}{more}" if found else f"no {name}, {fine}"
    archived = f" and {counted(checked.archived, 'archived rollout')}" if checked.archived else ""
    lines.append(
        f"checked {counted(checked.events, 'event')} of {counted(checked.rollouts, 'rollout')}{archived}: {said}"
    )
    output.put("".join(f"{line}\n" for line in lines))
    return 1 if found else 0


def counted(number: int, name: str) -> str:
    """A number of things, in words."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _plain(item: msgspec.Struct) -> dict[str, object]:
    """As JSON, with hashes as hex and the sentence that people read."""
    fields = msgspec.structs.asdict(item).items()
    return {**{key: value.hex() if isinstance(value, bytes) else value for key, value in fields}, "text": str(item)}
