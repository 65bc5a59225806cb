"""A ledger that is away while a command waits for it: said once when that begins, and once when it is over."""

from __future__ import annotations

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.logs import say


class Outage:
    """For commands that go on until something happens: an outage that ends is no reason to end them."""

    def __init__(self, waiting: str) -> None:
        """``waiting`` is what goes on, such as `following`."""
        self._waiting = waiting
        self._lasts = False

    def met(self, error: LedgerUnavailable) -> None:
        """The ledger could not be read."""
        if not self._lasts:
            say(f"{error}; {self._waiting} goes on when it can be")
        self._lasts = True

    def unanswered(self) -> None:
        """The command ends, and the ledger has not answered by then."""
        if not self._lasts:
            say("the ledger does not answer; look into it with `rollbook doctor`")

    def over(self) -> None:
        """It could be read."""
        if self._lasts:
            say(f"the ledger can be read again; {self._waiting} goes on")
        self._lasts = False
