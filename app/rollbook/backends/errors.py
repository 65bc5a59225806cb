"""Errors of the backends.

Exception
└── EntrypointError     the user's code could not be loaded; nothing can run before it is corrected
"""

from __future__ import annotations


class EntrypointError(Exception):
    """An entrypoint cannot be loaded. The message is one line and says what to do; `spec` is the entrypoint."""

    code = "entrypoint_error"

    def __init__(self, message: str, *, spec: str) -> None:
        super().__init__(message)
        self.spec = spec
