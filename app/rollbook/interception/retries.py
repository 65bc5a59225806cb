"""Which earlier call a request repeats: retries join it or get its answer again, instead of another sample."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from .call import Call, Incoming

KEPT_MAX_CALLS = 16
KEPT_MAX_BYTES = 4 * 1024 * 1024
KEPT_SEC = 60.0
"""Whole answers are kept for retries within these bounds; the oldest go first. Clients retry within seconds."""
_FAILURES_MAX = 256


type _Repeated = tuple[bytes, bytes | None]
"""What a repetition has in common with what it repeats: the digest, and the idempotency key if there is one."""


class Retries:
    """The calls of one session that a retry may mean.

    An exact repetition is joined to a call in flight, or gets its answer again, if it says that it is a retry
    (by a count or by the same idempotency key), or if nobody else waits for that call and nobody got its answer.
    Everything else is a new sample, and so is the retry of a failure.
    """

    def __init__(self) -> None:
        self._calls: dict[bytes, list[Call]] = {}
        self._kept: OrderedDict[Call, asyncio.TimerHandle] = OrderedDict()
        """With what ends its time; the oldest first."""
        self._kept_bytes = 0
        self._failures: Counter[_Repeated] = Counter()
        """How many failed and were not asked again yet."""

    def find(self, incoming: Incoming) -> Call | None:
        """The call that this request repeats; None if it is a new one."""
        repeated = _repeated(incoming)
        if self._failures[repeated] > 0:  # what it repeats is the failure
            self._failures[repeated] -= 1
            return None
        del self._failures[repeated]
        fitting = [call for call in self._calls.get(incoming.digest, ()) if _may_repeat(incoming, call)]
        # The newest of those that wait for nobody, else the newest.
        return max(enumerate(fitting), key=lambda item: (_is_lost(item[1]), item[0]), default=(0, None))[1]

    def add(self, call: Call) -> None:
        """Know of a call that begins."""
        self._calls.setdefault(call.incoming.digest, []).append(call)

    def ended(self, call: Call) -> None:
        """Keep a call's answer for a while, or forget a failure."""
        if call.failed:
            self._forget(call)
            self._failures[_repeated(call.incoming)] += 1
            if len(self._failures) > _FAILURES_MAX:
                del self._failures[next(iter(self._failures))]
            return
        self._kept[call] = asyncio.get_running_loop().call_later(KEPT_SEC, self._drop, call)
        self._kept_bytes += call.relay.size
        while len(self._kept) > KEPT_MAX_CALLS or self._kept_bytes > KEPT_MAX_BYTES:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Forget everything: nothing is asked again."""
        self._calls.clear()
        for timer in self._kept.values():
            timer.cancel()
        self._kept.clear()
        self._failures.clear()
        self._kept_bytes = 0

    def _drop(self, call: Call) -> None:
        self._kept.pop(call).cancel()
        self._kept_bytes -= call.relay.size
        self._forget(call)

    def _forget(self, call: Call) -> None:
        calls = self._calls.get(call.incoming.digest, [])
        if call in calls:
            calls.remove(call)
        if not calls:
            self._calls.pop(call.incoming.digest, None)


def _repeated(incoming: Incoming) -> _Repeated:
    return incoming.digest, incoming.idempotency_key


def _may_repeat(incoming: Incoming, call: Call) -> bool:
    if call.failed or call.stopping:
        return False
    theirs, ours = incoming.idempotency_key, call.incoming.idempotency_key
    if theirs is not None and ours is not None:
        return theirs == ours
    return incoming.says_retry or _is_lost(call)


def _is_lost(call: Call) -> bool:
    """Whether its program has hung up without its answer."""
    return not call.relay.readers and not call.relay.delivered
