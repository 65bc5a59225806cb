"""What a rollout decides about each of its model calls: limits, interceptors, stops, and what is written down of it.

For every turn, in this order: a rollout that has stopped takes none; the four limits; the stops that look at the
trace; then the interceptors and the stops of the request. For every answer: its interceptors, then the turn is
committed, then its stops.

Hooks may wait, and the other calls of a rollout go on meanwhile. So whether there is room for a turn is asked again
when its hooks have been; from there on it is in flight without any wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import msgspec

from rollbook.interception.messages import Refused, Request, Response
from rollbook.sdk.values import MessageDict
from rollbook.tasks.arguments import Given
from rollbook.tasks.errors import TaskError
from rollbook.tasks.hooks import HookSet
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.outcomes import Outcomes
from rollbook.tasks.running import first_stop, run_request_interceptors, run_response_interceptors
from rollbook.traces.calls import CallError, ModelCall
from rollbook.traces.events import called
from rollbook.traces.matching import MessageKeys
from rollbook.traces.trace import Rewrite, Trace
from rollbook_client.events import Event, ExchangeStopped, MessageRewritten

__all__ = ["Turns"]

_INTERCEPTED_ROLES = ("user", "tool")
"""Of messages that interceptors may rewrite; a request without a new one of these is not shown to them."""


class Turns:
    """The call policy of one rollout. Calls may overlap; everything happens on one event loop."""

    def __init__(
        self,
        given: Given,
        hooks: HookSet,
        *,
        limits: RolloutLimits,
        tell: Callable[[Event], None],
    ) -> None:
        self.trace: Trace = given.trace
        self.task_error: TaskError | None = None
        """The first mistake of a hook; from then on no turn is served."""
        self.fault: str | None = None
        """What broke on a call by nobody's mistake but ours, unless a later call brought an answer."""
        self._outcomes = Outcomes()
        self._given = given
        self._hooks = hooks
        self._limits = limits
        self._tell = tell
        self._keys = MessageKeys()
        self._passed: dict[Hashable, list[MessageDict]] = {}
        """What has been through the interceptors, by how the program has it, and what became of it each time."""
        self._passing: dict[Hashable, asyncio.Event] = {}
        """What is with the interceptors now, by the same; set once it has been."""
        self._news = asyncio.Event()
        """Set, and replaced, when a call has ended or the exchange is over."""

    @property
    def needs_whole_answer(self) -> bool:
        """Whether a hook may change or refuse an answer."""
        return self._hooks.rewrites_responses

    @property
    def in_flight(self) -> int:
        """How many calls have gone to the model and are not answered yet."""
        return self._outcomes.in_flight

    @property
    def call_error(self) -> CallError | None:
        """How the model failed a program that is over now; see `Outcomes.failure`.

        What was in flight when the exchange was stopped is no failure: the program was told to end.
        """
        return self._outcomes.failure(unanswered=not self.stopped)

    @property
    def hooks_at_work(self) -> list[str]:
        """Hooks that have been called and have not returned."""
        return list(self._given.hooks_at_work)

    @property
    def stopped(self) -> bool:
        """Whether a limit or a stop has ended the exchange."""
        return self.trace.stop_condition is not None

    async def hand_out(self, messages: Sequence[MessageDict], *, known: int) -> list[MessageDict]:
        """Pass messages that go to the program through the request interceptors; the first `known` have been there.

        Raises:
            TaskError: an interceptor broke a rule.
        """
        request = Request(messages=list(messages))
        handed = await self._intercepted(request, frozenset(range(known, len(messages))))
        for message in handed.messages[known:]:
            self._passed.setdefault(self._keys.of(message), []).append(message)
        return handed.messages

    async def before(self, request: Request) -> Request:
        """See `CallPolicy.before`."""
        await self._room()
        async with _Blaming(self):
            if name := await first_stop(self._hooks.trace_stops, self._given):
                self._stop(name)
            if self._hooks.request_interceptors:
                request = await self._intercept_new(request)
            if name := await first_stop(self._hooks.request_stops, self._given, boundary=request):
                self.trace.commit_prompt(request.messages)
                self._stop(name)
        await self._room()
        self._outcomes.began(request)
        return request

    async def answered(self, request: Request, response: Response, call: ModelCall) -> Response:
        """See `CallPolicy.answered`."""
        self.fault = None
        self._outcomes.answered(request)
        async with _Blaming(self):
            try:
                response, rewrites = await run_response_interceptors(
                    self._hooks.response_interceptors, response, self._given
                )
            except BaseException:
                self._commit(request, response, call)  # the turn happened, whatever a hook makes of it
                raise
            committed = self._commit(request, response, call)
            for rewrite in rewrites:
                self._note(msgspec.structs.replace(rewrite, call=committed.number))
            if name := await first_stop(self._hooks.response_stops, self._given, boundary=response):
                self._stop(name)
        return response

    def failed(self, request: Request, call: ModelCall) -> None:
        """See `CallPolicy.failed`."""
        self._outcomes.failed(request, call)
        self._land(request)
        # Its prompt stays out of the graph: what was never answered is no branch.
        call = self.trace.commit_call(call, None, None)
        self._tell(called(call))

    def left(self, request: Request, *, had_part: bool) -> Callable[[], None]:
        """See `CallPolicy.left`."""
        if self.stopped:  # it was told to end
            return lambda: None
        return self._outcomes.left(request, had_part=had_part)

    def broke(self, message: str) -> None:
        """See `CallPolicy.broke`."""
        self.fault = message

    def blame(self, error: TaskError) -> None:
        """Keep the first mistake of a hook; the exchange is over."""
        if self.task_error is None:
            self.task_error = error
        self._tell_those_who_wait()

    async def _room(self) -> None:
        """Return where a turn may be served now, raise `Refused` where none may.

        Where the turns on their way are all that are left, this waits for what becomes of them: an answer takes the
        turn, and after a failure it is there for another call.
        """
        while True:
            if self.trace.stop_condition is not None:
                raise Refused(self.trace.stop_condition)
            if self.task_error is not None:
                raise Refused(self.task_error.hook or "error of the task")
            if limit := self._limits.reached(self.trace):
                self._stop(limit)
            if not self._turns_are_out():
                return
            await self._news.wait()

    def _land(self, request: Request) -> None:
        self._outcomes.landed(request)
        self._tell_those_who_wait()

    def _tell_those_who_wait(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _turns_are_out(self) -> bool:
        """Whether the turns that are on their way take all that are left."""
        limit = self._limits.max_turns
        return limit is not None and self.trace.num_turns + self.in_flight >= limit

    def _stop(self, name: str) -> None:
        if self.trace.stop_condition is None:
            self.trace.stop_condition = name
            self._tell(ExchangeStopped(attempt=0, condition=name))
            self._tell_those_who_wait()
        raise Refused(name)

    async def _intercepted(self, request: Request, new: frozenset[int]) -> Request:
        if not any(request.messages[index].get("role") in _INTERCEPTED_ROLES for index in new):
            return request
        request, rewrites = await run_request_interceptors(
            self._hooks.request_interceptors, request, self._given, new=new
        )
        for rewrite in rewrites:
            self._note(rewrite)
        return request

    async def _intercept_new(self, sent: Request) -> Request:
        """Pass what has not been through the interceptors yet; what has, becomes again what it became then.

        A program goes on having a message as it was before it was rewritten, at another place too where it has cut
        its history. So messages are told by what they say: of several equal ones the first was the first.
        """
        while True:
            request, new = self._with_what_passed(sent)
            passing = {id(event): event for key in new.values() if (event := self._passing.get(key)) is not None}
            if not passing:
                break
            for event in passing.values():  # another call brought the same at the same time
                await event.wait()
        passed = asyncio.Event()
        self._passing.update(dict.fromkeys(new.values(), passed))
        try:
            request = await self._intercepted(request, frozenset(new))
            for index, key in new.items():
                self._passed.setdefault(key, []).append(request.messages[index])
        finally:
            for key in set(new.values()):
                del self._passing[key]
            passed.set()
        return request

    def _with_what_passed(self, sent: Request) -> tuple[Request, dict[int, Hashable]]:
        """The request with its messages as they were handed on before, and those that are new, by their indices."""
        seen: Counter[Hashable] = Counter()
        messages: list[MessageDict] = []
        first_time: dict[int, Hashable] = {}
        for index, message in enumerate(sent.messages):
            key = self._keys.of(message)
            passed = self._passed.get(key, ())
            if seen[key] < len(passed):
                messages.append(passed[seen[key]])
            else:
                messages.append(message)
                first_time[index] = key
            seen[key] += 1
        known = self.trace.graph.known(messages)
        request = msgspec.structs.replace(sent, messages=messages)
        return request, {index: key for index, key in first_time.items() if index >= known}

    def _commit(self, request: Request, response: Response, call: ModelCall) -> ModelCall:
        try:
            prompt = self.trace.commit_prompt(request.messages)
            call = self.trace.commit_call(call, response.message, prompt)
        finally:
            self._land(request)
        self._tell(called(call))
        return call

    def _note(self, rewrite: Rewrite) -> None:
        rewrites = self.trace.request_rewrites if rewrite.side == "request" else self.trace.response_rewrites
        rewrites.append(rewrite)
        self._tell(MessageRewritten(attempt=0, hook=rewrite.hook, side=rewrite.side, call=rewrite.call))


class _Blaming:
    """A mistake of a hook ends the exchange: it is kept for the rollout, and the program is refused."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TaskError):
            self._turns.blame(error)
            raise Refused(error.hook or "error of the task") from error
