"""What a rollout is doing now: one thing at a time, which another task may end."""

from __future__ import annotations

import asyncio
from types import TracebackType

from rollbook.endings import to_the_end

__all__ = ["AtWork", "EndedByAnother"]


class EndedByAnother(Exception):
    """The work was ended by `AtWork.end`."""


class AtWork:
    """Use it as a context around work; the task that enters is the one that works.

    Entering raises ``RuntimeError`` while another task is inside. Leaving raises `EndedByAnother`, as ``timeout``
    raises its own error, where `end` was called meanwhile, in place of what the work raised then; a cancellation by
    anybody else stays one.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._ended = False
        self._left = asyncio.Event()

    def __enter__(self) -> None:
        if self._task is not None:
            raise RuntimeError(
                "this rollout is at work in another task; wait for that, or end it by close() or abort()"
            )
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling, self._ended = task, task.cancelling(), False
        self._left = asyncio.Event()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        assert task is not None
        self._left.set()
        if self._ended and task.uncancel() <= self._cancelling:
            raise EndedByAnother from error

    @property
    def busy(self) -> bool:
        """Whether a task is inside."""
        return self._task is not None

    async def end(self) -> bool:
        """Cancel the work and wait until it has ended; whether there was any.

        A cancellation of the caller is raised after that.
        """
        if self._task is None:
            return False
        if not self._ended:
            self._ended = True
            self._task.cancel()
        await to_the_end(self._left.wait())
        return True
