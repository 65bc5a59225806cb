"""A process that archives and is killed at a given moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from rollbook.ledger.archives import file, moving, writing

PLACES: dict[str, tuple[Any, str]] = {
    "in the file": (file.ArchiveWriter, "end"),
    "the file's end": (file.ArchiveWriter, "close"),
    "the file's name": (writing, "publish"),
    "the reading": (moving, "_File"),
    "a portion": (moving, "_move_portion"),
    "the stubs": (moving, "_registered"),
    "the checks": (moving, "_not_moved"),
    "the end": (moving, "_complete"),
}
PORTION_EVENTS = 30


def archive_until_killed(database_url: str, before_at: int, path: Path, place: str, when: str, count: int) -> None:
    """Archive, and be killed before or after the step at the place is taken for the ``count``-th time."""
    owner, name = PLACES[place]
    whole = getattr(owner, name)
    left = count

    def killing(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = whole(*arguments, **options)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, killing)
    moving.PORTION_EVENTS = PORTION_EVENTS
    moving.archive(database_url, before_at=before_at, to=path)
