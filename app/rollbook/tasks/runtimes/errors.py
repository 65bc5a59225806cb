"""What goes wrong with a runtime itself, as against with the programs in it.

    RuntimeUnavailableError     this machine cannot give such a runtime: something is not installed, or forbidden
    RuntimeFailedError          a runtime broke, or could not start a command
    UnsupportedNetworkError     a network policy that this runtime cannot enforce
    UnsafePathError             a file that is not to be read or written: outside the folder, or behind a symbolic link

The first two are the machine's faults, so a rollout that fails by one is an `internal_error`; a network policy is the
task's, and a file the program's. A runtime that is used after it was stopped raises
`rollbook.tasks.errors.RuntimeStoppedError`.
"""

from __future__ import annotations

from rollbook.backends.errors import MachineError

__all__ = ["RuntimeFailedError", "RuntimeUnavailableError", "UnsafePathError", "UnsupportedNetworkError"]


class RuntimeUnavailableError(MachineError):
    """This machine cannot give such a runtime; the message names the package to install or the setting to change."""


class RuntimeFailedError(MachineError):
    """A runtime broke down or could not start a command. Says nothing about what a program did."""


class UnsupportedNetworkError(ValueError):
    """The runtime cannot enforce this network policy, and does not pretend to."""


class UnsafePathError(Exception):
    """A path that leaves the runtime's folder, or goes through something that a program put there to mislead."""
