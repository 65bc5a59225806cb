"""`python -m rollbook.server`: one API process, told by its environment what to serve."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys

import msgspec

from rollbook.logs import log_to_stderr, say
from rollbook.settings import API_SETTINGS_VARIABLE, HINT_VARIABLE, LISTEN_VARIABLE, ApiSettings
from rollbook.supervisor import LIFELINE_VARIABLE


def main() -> int:
    """Serve what the environment says; the exit code."""
    gc.disable()  # until all is imported, which would set it off again and again, and leaves it nothing to do
    from .process import LOG_TEXT, run_api

    log_to_stderr(logging.WARNING, process="api", text=LOG_TEXT)
    text = os.environ.pop(API_SETTINGS_VARIABLE, "")  # it may hold the API's key: no child shall inherit it
    if not text:
        say(f"{API_SETTINGS_VARIABLE} is not set; start an API with `rollbook serve` instead")
        return 2
    settings = msgspec.json.decode(text, type=ApiSettings)
    hint_fd = os.environ.get(HINT_VARIABLE)
    lifeline_fd = os.environ.get(LIFELINE_VARIABLE)
    listen_fd = os.environ.get(LISTEN_VARIABLE)
    return run_api(
        settings,
        hint_socket=None if hint_fd is None else socket.socket(fileno=int(hint_fd)),
        lifeline_fd=None if lifeline_fd is None else int(lifeline_fd),
        listener=None if listen_fd is None else socket.socket(fileno=int(listen_fd)),
    )


if __name__ == "__main__":
    sys.exit(main())
