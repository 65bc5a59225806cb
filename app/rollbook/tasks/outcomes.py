"""What became of a rollout's model calls, as far as it says whether the model failed the program.

A call that failed, and one that the program gave up because no answer came, count unless a later one went well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from msgspec import Struct

from rollbook.interception.messages import Request
from rollbook.traces.calls import CallError, ModelCall

__all__ = ["Outcomes"]


class _Serving(Struct):
    """A call that has gone to the model."""

    number: int
    """In the order in which calls begin and come to a good end; both are counted together."""
    began: float
    left_after_sec: float | None = None
    """How long the program had waited when it hung up; None while it waits."""
    had_part: bool = False
    """Whether the program has had a part of the answer when it hung up."""
    answered: bool = False


class Outcomes:
    """The calls of one rollout, by the request that each went to the model with."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._in_flight: dict[int, _Serving] = {}
        """By the request's identity: a call holds its own until it has ended."""
        self._given_up: dict[int, _Serving] = {}
        """What the program hung up on and has not come back for, by number."""
        self._last_success = 0
        self._failed: CallError | None = None

    @property
    def in_flight(self) -> int:
        """How many calls have gone to the model and are not answered yet."""
        return len(self._in_flight)

    def began(self, request: Request) -> None:
        """The call goes to the model now."""
        self._in_flight[id(request)] = _Serving(next(self._numbers), time.monotonic())

    def left(self, request: Request, *, had_part: bool) -> Callable[[], None]:
        """The program hung up; what is returned is to be called if it comes back for the answer."""
        serving = self._in_flight.get(id(request))
        if serving is None:  # its end is recorded already, and only its last hooks run
            return lambda: None
        serving.left_after_sec, serving.had_part = time.monotonic() - serving.began, had_part
        self._given_up[serving.number] = serving

        def back() -> None:
            if self._given_up.pop(serving.number, None) is not None:
                serving.left_after_sec = None
                if serving.answered:
                    self._went_well()

        return back

    def answered(self, request: Request) -> None:
        """The model has answered. It counts where the program has it, or has cut off what came of it by itself."""
        serving = self._in_flight[id(request)]
        serving.answered = True
        if serving.left_after_sec is None or serving.had_part:
            self._given_up.pop(serving.number, None)
            self._went_well()

    def failed(self, request: Request, call: ModelCall) -> None:
        """The call brought no answer; where it was ended by us, it counts only if the program had given it up."""
        serving = self._in_flight[id(request)]
        if call.error is not None and call.error.kind != "aborted":
            self._given_up.pop(serving.number, None)
            self._failed = call.error

    def landed(self, request: Request) -> None:
        """The call is in flight no more."""
        del self._in_flight[id(request)]

    def failure(self, *, unanswered: bool) -> CallError | None:
        """How the model failed the program, None where it did not: the last call that failed, unless a later one
        brought an answer, or else the last that the program gave up, unless one went well that began or ended later.

        `unanswered` says that the program is over, so that what is in flight is given up too.
        """
        if self._failed is not None:
            return self._failed
        given_up = [*self._given_up.values(), *(self._in_flight.values() if unanswered else ())]
        late = [serving for serving in given_up if serving.number > self._last_success]
        return _no_answer(max(late, key=lambda serving: serving.number)) if late else None

    def _went_well(self) -> None:
        self._failed = None
        self._last_success = next(self._numbers)


def _no_answer(serving: _Serving) -> CallError:
    how, after_sec = "hung up", serving.left_after_sec
    if after_sec is None:
        how, after_sec = "ended", time.monotonic() - serving.began
    return CallError("timeout", f"the model had not answered when the program {how}, after {after_sec:.1f} s")
