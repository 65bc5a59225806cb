"""Where the programs of a rollout run: a folder of this machine, or a sandbox."""

from .base import Completed, Runtime
from .borrowed import borrowed
from .bubblewrap import BubblewrapRuntime
from .errors import RuntimeFailedError, RuntimeUnavailableError, UnsafePathError, UnsupportedNetworkError
from .subprocess import SubprocessRuntime

__all__ = [
    "BubblewrapRuntime",
    "Completed",
    "Runtime",
    "RuntimeFailedError",
    "RuntimeUnavailableError",
    "SubprocessRuntime",
    "UnsafePathError",
    "UnsupportedNetworkError",
    "borrowed",
]
