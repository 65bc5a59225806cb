"""A runtime that somebody else owns, as a rollout sees it that may use but not stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollbook.tasks.data import NetworkPolicy
from rollbook.tasks.errors import RuntimeStoppedError

from .base import READ_LIMIT_BYTES, Completed, Runtime

__all__ = ["BorrowedRuntime", "borrowed"]


def borrowed(runtime: Runtime) -> BorrowedRuntime:
    """A view of a runtime that its owner has started: `stop` leaves it running, everything else reaches it.

    What is asked of it once the owner has stopped the runtime raises RuntimeStoppedError.
    """
    if isinstance(runtime, BorrowedRuntime):
        return runtime
    return BorrowedRuntime(runtime)


class BorrowedRuntime(Runtime):
    """See `borrowed`."""

    def __init__(self, owned: Runtime) -> None:
        self._owned = owned

    @property
    def owned(self) -> Runtime:
        """What this is a view of."""
        return self._owned

    @property
    def stopped(self) -> bool:
        return self._owned.stopped

    @property
    def folder(self) -> Path:
        return self._lent().folder

    @property
    def workdir(self) -> str:
        return self._owned.workdir

    async def start(self) -> None:
        """Check that it still runs; its owner started it."""
        _ = self._lent().folder

    async def stop(self) -> None:
        """Do nothing: stopping is its owner's."""

    async def run(
        self,
        command: Sequence[str] | str,
        *,
        env: Mapping[str, str] = {},
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout_sec: float | None = None,
        on_cut: Callable[[Completed], object] | None = None,
    ) -> Completed:
        return await self._lent().run(command, env=env, cwd=cwd, stdin=stdin, timeout_sec=timeout_sec, on_cut=on_cut)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self._lent().write(path, data, mode=mode)

    async def read(self, path: str, *, limit_bytes: int = READ_LIMIT_BYTES) -> bytes:
        return await self._lent().read(path, limit_bytes=limit_bytes)

    async def allow(self, policy: NetworkPolicy, *, keep: Sequence[tuple[str, int]] = ()) -> None:
        await self._lent().allow(policy, keep=keep)

    def url_of(self, port: int) -> str:
        return self._owned.url_of(port)

    def why_absent(self, program: str) -> str | None:
        return self._owned.why_absent(program)

    def _lent(self) -> Runtime:
        if self._owned.stopped:
            raise RuntimeStoppedError(
                "the borrowed runtime was stopped by its owner while it was still lent; "
                "stop it after the last rollout that borrows it has closed"
            )
        return self._owned
