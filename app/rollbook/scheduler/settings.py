"""How a scheduler starts a runner process."""

from __future__ import annotations

import msgspec

SETTINGS_VARIABLE = "ROLLBOOK_RUNNER_SETTINGS"


class RunnerSettings(msgspec.Struct, frozen=True):
    """A runner's settings. The descriptors are inherited."""

    entrypoint: str
    pipe: int
    marks: int
    stacks: int
    parent: int
    max_concurrent: int | None = None
    memory_bytes: int | None = None
    record_model_calls: bool = True
    stack_after_sec: float = 2.0
