"""Settings of the interpreter and of the process, for processes of ours that serve for a long time."""

from __future__ import annotations

import gc
import resource
from contextlib import suppress

YOUNG_OBJECTS = 10_000
_former_files: int | None = None


def spare_the_collector() -> None:
    """Leave what was imported out of garbage collections, and collect less often.

    The servers make many short-lived objects and hardly any cycles; scanning the modules again and again is most of
    what the collector does otherwise. Call it once everything is imported. Imports leave some hundred objects of
    garbage, which is not worth a collection: that would take a tenth of a process's start.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    gc.enable()


def allow_many_files() -> None:
    """Raise the limit on open files to what the system allows this process: the usual 1,024 is low for one that serves.

    Connections are open files. Programs that it starts inherit the limit, and some are slow or wrong with a high one;
    `former_file_limit` is what they should have.
    """
    global _former_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a system that caps it below what it calls the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _former_files = soft


def former_file_limit() -> int | None:
    """The soft limit on open files before `allow_many_files` raised it; None where it did not."""
    return _former_files
