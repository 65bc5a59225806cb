"""Execution backends: what runs one rollout. `base` is their contract; `LocalBackend` runs in process."""

from rollbook.backends.base import ExecutionBackend, ExecutionOutcome, ExecutionRequest, ExecutionResult
from rollbook.backends.entrypoint import entrypoint_name, load_entrypoint
from rollbook.backends.errors import EntrypointError, MachineError
from rollbook.backends.local import LocalBackend
from rollbook.backends.settle import SettledResult, settle

__all__ = [
    "EntrypointError",
    "ExecutionBackend",
    "ExecutionOutcome",
    "ExecutionRequest",
    "ExecutionResult",
    "LocalBackend",
    "MachineError",
    "SettledResult",
    "entrypoint_name",
    "load_entrypoint",
    "settle",
]
