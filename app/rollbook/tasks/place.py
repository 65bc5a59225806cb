"""Where one rollout runs its programs: a runtime of its own, or one that is lent to it and maybe to others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

from rollbook.tasks.data import NetworkPolicy, Resources
from rollbook.tasks.errors import RuntimeStoppedError
from rollbook.tasks.runtimes.base import Runtime, made_by
from rollbook.tasks.runtimes.borrowed import BorrowedRuntime
from rollbook.tasks.runtimes.errors import UnsupportedNetworkError

__all__ = ["Place"]

log = logging.getLogger(__name__)


class _Lent:
    """What the rollouts have agreed on that are open in one runtime."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        self.borrowers = 0


_lent: WeakKeyDictionary[Runtime, _Lent] = WeakKeyDictionary()
"""By the runtime itself, also where it was passed on as a view of it."""


class Place:
    """The runtime of a rollout: made by it and stopped with it, or ready-made, then it is its owner's."""

    def __init__(self, runtime: Runtime | Callable[..., Runtime]) -> None:
        self._make = None if isinstance(runtime, Runtime) else runtime
        self.runtime = runtime if isinstance(runtime, Runtime) else None
        """None before it was made, and after the end of one that was."""
        self._agreed: _Lent | None = None

    @property
    def borrowed(self) -> bool:
        """Whether it is somebody else's."""
        return self._make is None

    @property
    def lost(self) -> bool:
        """Whether it is borrowed and its owner has stopped it."""
        return self._make is None and self.runtime is not None and self.runtime.stopped

    @property
    def started(self) -> Runtime:
        """The runtime; it must be there."""
        assert self.runtime is not None
        return self.runtime

    def check(self) -> None:
        """Raise ``RuntimeStoppedError`` where it is `lost`."""
        if self.lost:
            raise lost_error()

    def check_lent(self) -> None:
        """Raise ``RuntimeStoppedError`` where it is `lost`, or is borrowed and was never started."""
        self.check()
        if self._make is None:
            _ = self.started.folder

    def agree(self, policy: NetworkPolicy) -> None:
        """Have the policy for as long as the rollout is open: a borrowed runtime has one for all who are in it.

        Raises:
            UnsupportedNetworkError: a rollout that is open in the same runtime has another one.
        """
        if self._make is not None:
            return
        lent = _lent.setdefault(_itself(self.started), _Lent(policy))
        if lent.policy != policy:
            raise UnsupportedNetworkError(
                f"a rollout that is open in the same borrowed runtime has the network policy {_shown(lent.policy)}, "
                f"and this one asks for {_shown(policy)}; "
                f"give each a runtime of its own, or open this one when that is closed"
            )
        lent.borrowers += 1
        self._agreed = lent

    async def start(self, resources: Resources) -> None:
        """Make and start one of its own; a borrowed one is there."""
        if self._make is not None:
            self.runtime = made_by(self._make, resources=resources)
            await self.runtime.start()

    async def leave(self, *, rollout_id: str) -> None:
        """Stop it where it is the rollout's own, give it back where it is not."""
        agreed, self._agreed = self._agreed, None
        if agreed is not None:
            agreed.borrowers -= 1
            if not agreed.borrowers:
                _lent.pop(_itself(self.started), None)
        if self._make is not None and self.runtime is not None:
            runtime, self.runtime = self.runtime, None
            try:
                await runtime.stop()
            except Exception:
                log.exception("rollout %s: its runtime could not be stopped", rollout_id)


def lost_error() -> RuntimeStoppedError:
    """The error for a borrowed runtime that is there no more."""
    return RuntimeStoppedError(
        "the borrowed runtime has been stopped by its owner; keep it until its borrowers have closed"
    )


def _itself(runtime: Runtime) -> Runtime:
    return runtime.owned if isinstance(runtime, BorrowedRuntime) else runtime


def _shown(policy: NetworkPolicy) -> str:
    return f"allow={list(policy.allow)}, deny={list(policy.deny)}"
