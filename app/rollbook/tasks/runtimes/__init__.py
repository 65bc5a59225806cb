"""Where the programs of a rollout run: a folder of this machine, or a sandbox."""

from .base import Completed, Runtime
from .borrowed import borrowed
from .errors import RuntimeFailedError, RuntimeUnavailableError, UnsafePathError, UnsupportedNetworkError

__all__ = [
    "Completed",
    "Runtime",
    "RuntimeFailedError",
    "RuntimeUnavailableError",
    "UnsafePathError",
    "UnsupportedNetworkError",
    "borrowed",
]
