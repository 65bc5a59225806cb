"""An admission written down, so that another process can go on polling it."""

from __future__ import annotations

from typing import Literal

import msgspec

from rollbook_client.messages import RolloutInitResponse


class SavedAdmission(msgspec.Struct, frozen=True, kw_only=True):
    """What a saved handle is: the admission, with the status that was last seen.

    No deadline is kept. A lease that was renewed after the saving would make it wrong, and a clock in another process
    or on another host wronger: the first poll after attaching tells.
    """

    format: Literal["rollbook-admission-1"]
    admission: RolloutInitResponse


def save_admission(admission: RolloutInitResponse) -> bytes:
    """The JSON bytes of a `SavedAdmission`; they hold the lease token."""
    return msgspec.json.encode(SavedAdmission(format="rollbook-admission-1", admission=admission))


def load_admission(saved: bytes) -> RolloutInitResponse:
    """The admission in what `save_admission` wrote.

    Raises:
        ValueError: these bytes are something else, or incomplete.
    """
    try:
        return msgspec.json.decode(saved, type=SavedAdmission).admission
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"these bytes are no saved rollout admission ({error}); pass what RolloutHandle.save() returned, complete"
        ) from error
