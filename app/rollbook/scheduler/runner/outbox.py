"""A runner's reports on their way to its scheduler: those of one turn of the loop go in one write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rollbook.scheduler.wire import Finished, FrameTooLongError, ToScheduler

log = logging.getLogger(__name__)


class Outbox:
    """Gathers reports and hands them to ``send``, which may refuse one that has no form on the wire."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._waiting: list[ToScheduler] = []

    def put(self, message: ToScheduler) -> None:
        """Send soon; call it on the runner's loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(message)

    def flush(self) -> None:
        """Send what waits now."""
        messages, self._waiting = self._waiting, []
        try:
            self._send(*messages)
        except (TypeError, ValueError, OverflowError):
            # Nothing was sent. One report of a backend's making must not keep the others from the scheduler.
            for message in messages:
                self._send_alone(message)

    def _send_alone(self, message: ToScheduler) -> None:
        try:
            self._send(message)
        except (TypeError, ValueError, OverflowError) as error:
            log.exception("a report cannot be sent: %s", type(message).__name__)
            if isinstance(message, Finished):
                # Only our own error's text: another's may quote what the report holds.
                reason = str(error) if isinstance(error, FrameTooLongError) else type(error).__name__
                self._send(
                    Finished(
                        key=message.key,
                        status="failure",
                        err_message=f"the backend's result cannot be sent to the scheduler: {reason}",
                        err_category="internal_error",
                    )
                )
