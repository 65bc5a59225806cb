"""How long a scheduler leaves others their share: a short while, so that no rollout waits for one that stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SHARE_HELD_SEC = 0.05


class Shares:
    """Whether claims keep to a fair share. After one that got less than it could take, the next may take all."""

    def __init__(self, ask_again: Callable[[], None]) -> None:
        """``ask_again`` is called when it is time for another claim."""
        self._ask_again = ask_again
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    @property
    def fair(self) -> bool:
        """Whether the next claim takes its share only."""
        return not self._over

    def short(self) -> None:
        """A claim got less than it could take."""
        self._over = False
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SHARE_HELD_SEC, self._time_over)

    def settled(self) -> None:
        """Nothing is left that could be taken."""
        self._over = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_over(self) -> None:
        self._timer = None
        self._over = True
        self._ask_again()
