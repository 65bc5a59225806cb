"""Settings of the interpreter for processes of ours that serve for a long time."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 10_000


def spare_the_collector() -> None:
    """Leave what was imported out of garbage collections, and collect less often.

    The servers make many short-lived objects and hardly any cycles; scanning the modules again and again is most of
    what the collector does otherwise. Call it once everything is imported. Imports leave some hundred objects of
    garbage, which is not worth a collection: that would take a tenth of a process's start.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    gc.enable()
