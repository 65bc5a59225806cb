"""What a program wrote: cleaned of secrets, and the end of it kept with the trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollbook.scrub import KEY_MIN_CHARS
from rollbook.tasks.runtimes.base import Completed

__all__ = ["KEPT_BYTES", "PROGRAM", "Written", "is_secret"]

PROGRAM = "program"
"""Where it is in the trace's `info`."""
KEPT_BYTES = 4096
"""Of the output and of the errors each, over all segments of a rollout."""

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of this name and value is one that must not be kept."""
    return len(value) >= KEY_MIN_CHARS and _SECRET_NAME.search(name) is not None


class Written:
    """The output and the errors of a program that has ended, as text, with each of `secrets` replaced."""

    def __init__(self, ended: Completed, *, secrets: Mapping[str, str]) -> None:
        self.exit_code = ended.exit_code
        self.stdout = _cleaned(ended.stdout, secrets, dropped=ended.stdout_dropped)
        self.stderr = _cleaned(ended.stderr, secrets, dropped=ended.stderr_dropped)

    def keep(self, info: dict[str, Any]) -> None:
        """Put the end of it into a trace's `info`, behind what earlier segments left there."""
        earlier = info.get(PROGRAM)
        if not isinstance(earlier, dict):  # the first segment, or a name that the task has taken for itself
            earlier = {}
        info[PROGRAM] = {
            "exit_code": self.exit_code,
            "stdout": _tail(_behind(earlier.get("stdout"), self.stdout)),
            "stderr": _tail(_behind(earlier.get("stderr"), self.stderr)),
        }


def _cleaned(raw: bytes, secrets: Mapping[str, str], *, dropped: int) -> str:
    text = raw.decode("utf-8", "replace")
    if dropped:  # it may begin in the middle of a secret, which nothing would find
        text = text[max(map(len, secrets), default=0) :]
    for secret, name in sorted(secrets.items(), key=lambda item: -len(item[0])):
        text = text.replace(secret, name)
    return text.strip()


def _behind(earlier: Any, text: str) -> str:
    return f"{earlier}\n{text}".strip() if isinstance(earlier, str) else text


def _tail(text: str) -> str:
    return text.encode()[-KEPT_BYTES:].decode("utf-8", "ignore")
