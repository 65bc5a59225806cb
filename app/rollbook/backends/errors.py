"""Errors of the backends.

Exception
├── EntrypointError     the user's code could not be loaded; nothing can run before it is corrected
└── MachineError        this machine, or Rollbook on it, cannot do its part of a rollout: nobody's code is at fault
"""

from __future__ import annotations


class EntrypointError(Exception):
    """An entrypoint cannot be loaded. The message is one line and says what to do; `spec` is the entrypoint."""

    code = "entrypoint_error"

    def __init__(self, message: str, *, spec: str) -> None:
        super().__init__(message)
        self.spec = spec


class MachineError(Exception):
    """What a rollout needs of this machine is missing or has broken down; the message says what to install or change.

    A rollout that fails by it is an `internal_error`: nothing can be learned of the agent from it.
    """

    code = "machine_error"
