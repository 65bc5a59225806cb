"""Model calls of `LocalBackend`'s rollouts: the endpoint in front of the policy, and what is recorded of each call."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rollbook.backends.failures import Failure
from rollbook.endings import to_the_end
from rollbook.interception.messages import Request, Response
from rollbook.interception.route import Route
from rollbook.scrub import joined, scrub, secret_texts
from rollbook.sdk.context import RolloutContext
from rollbook.traces.calls import CallError, ModelCall
from rollbook.traces.events import called
from rollbook_client.statuses import RolloutErrorCategory

if TYPE_CHECKING:
    from rollbook.interception.threaded import EndpointThread, RunningEndpoint, ThreadedSession

logger = logging.getLogger(__name__)

POLICY = "policy"
GRADER = "grader"
"""Whom a call serves: the workflow, or the grader, which may ask the same model."""

_BLAMED = frozenset({"http", "connect", "broken_stream", "garbage", "internal"})
"""The failures that are the model server's own, or the endpoint's; a call that we ended says nothing of them."""
_LOOPBACK = "127.0.0.1"


class Calls:
    """The model calls of one rollout: a call policy that lets everything pass and has each call recorded.

    The endpoint tells it of calls in a thread of its own; the rest is for the rollout's.
    """

    needs_whole_answer = False

    def __init__(self, ctx: RolloutContext) -> None:
        self.ctx = ctx
        """The context that user code sees."""
        self._ctx = ctx
        self._purpose = POLICY
        self._purposes: dict[int, str] = {}
        self._ended = 0
        self._lock = threading.Lock()
        self._session: ThreadedSession | None = None
        self._over = False
        self._failed: CallError | None = None

    def begin_grading(self) -> None:
        """From now on calls are the grader's, and it has not failed by any."""
        self._purpose, self._failed = GRADER, None

    def explained(self, failure: Failure) -> Failure:
        """A stage's failure; ``http_error`` where its last model call failed at the model server, ``internal_error``
        where it failed here.

        A deadline of ours, and a ``TimeoutError`` of user code, stay what they are.
        """
        call = self._failed
        if call is None or failure.category is RolloutErrorCategory.TIMEOUT:
            return failure
        own = failure.message
        message = own if call.message in own else f"{own} (its last model call failed: {call.message})"
        ours = call.kind == "internal"
        return Failure(message, RolloutErrorCategory.INTERNAL_ERROR if ours else RolloutErrorCategory.HTTP_ERROR)

    def open_at(self, endpoint: RunningEndpoint) -> None:
        """Have user code reach the model through a session, which is opened once it asks for the model's URL.

        Many rollouts never do. One that asks when it is over gets what opens nothing.
        """

        def stand_ins() -> tuple[str, str | None]:
            with self._lock:
                if self._session is None:
                    self._session = endpoint.open(self._ctx.chat_completions_url, self._ctx.api_key, self)
                    if self._over:
                        self._session.end()
                session = self._session
            # Without a key of the trainer's, user code must look for one of its own.
            return session.chat_url, None if self._ctx.api_key is None else session.secret

        self.ctx = self._ctx.through(stand_ins)

    async def end(self) -> None:
        """End what is in flight; all calls are recorded then."""
        with self._lock:
            self._over, session = True, self._session
        self._ctx.sample_source = self.ctx.sample_source
        if session is not None:
            await to_the_end(session.close())

    def scrubbed(self, text: str) -> str:
        """A text without the secrets of the rollout, and without those that user code had instead.

        Lone surrogates, which no log file takes, become question marks.
        """
        contexts = (self._ctx,) if self._session is None else (self._ctx, self.ctx)
        secrets = joined(*(secret_texts(ctx.chat_completions_url, ctx.api_key) for ctx in contexts))
        return scrub(text, secrets).encode("utf-8", "replace").decode()

    async def before(self, request: Request) -> Request:
        """See `CallPolicy.before`."""
        self._purposes[id(request)] = self._purpose
        return request

    async def answered(self, request: Request, response: Response, call: ModelCall) -> Response:
        """See `CallPolicy.answered`."""
        self._note(request, call)
        return response

    def failed(self, request: Request, call: ModelCall) -> None:
        """See `CallPolicy.failed`."""
        self._note(request, call)

    def left(self, request: Request, *, had_part: bool) -> Callable[[], None]:
        """See `CallPolicy.left`: what a workflow makes of its own time limits is its own."""
        return lambda: None

    def broke(self, message: str) -> None:
        """See `CallPolicy.broke`."""
        self._failed = CallError("internal", message)

    def _note(self, request: Request, call: ModelCall) -> None:
        purpose = self._purposes.pop(id(request))
        self._ended += 1
        if purpose == self._purpose and (call.error is None or call.error.kind in _BLAMED):
            self._failed = call.error
        self._ctx.record(called(replace(call, number=self._ended, purpose=purpose)))


class CallRecording:
    """Whether a backend's model calls are recorded, and the endpoint that sees them once there are any.

    ``wanted`` None is off until somebody decides. The endpoint has a thread of its own: a workflow that blocks its
    event loop while it waits for the model still gets its answer.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._wanted: bool | None = None
        self._thread: EndpointThread | None = None
        self.wanted = wanted

    @property
    def wanted(self) -> bool | None:
        """None where nobody has decided."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: bool | None) -> None:
        if wanted:
            if importlib.util.find_spec("uvicorn") is None:
                raise ModuleNotFoundError(
                    "recording model calls needs uvicorn; install it with "
                    'pip install "rollbook[server]", or leave out record_model_calls',
                    name="uvicorn",
                )
            reach_loopback_directly()
        self._wanted = wanted

    @contextlib.asynccontextmanager
    async def of(self, ctx: RolloutContext) -> AsyncIterator[Calls]:
        """The calls of a rollout, whose user code is to run with ``calls.ctx`` inside the block.

        At its end all of its calls are over and recorded. A URL that is none of HTTP is left to user code as it is,
        and so is any if no port is free: a missing record is no reason to lose a rollout.
        """
        calls = Calls(ctx)
        if not self._wanted:
            yield calls
            return
        if self._thread is None:
            from rollbook.interception.threaded import EndpointThread  # uvicorn: only those who record need it

            self._thread = EndpointThread()
        try:
            Route(ctx.chat_completions_url)
            endpoint = await self._thread.running()
        except (ValueError, OSError) as error:
            # The error's own text may hold the URL.
            logger.warning("rollout %s runs without a record of its model calls: %s", ctx.rollout_id, _reason(error))
            yield calls
            return
        calls.open_at(endpoint)
        try:
            yield calls
        finally:
            await calls.end()

    async def close(self) -> None:
        """End the endpoint and its thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.close()


def reach_loopback_directly() -> None:
    """Have HTTP clients of this process, where they use a proxy, use none for this machine's own address.

    Call it before user code is loaded: clients read the variables when they are made.
    """
    hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    named = {host.strip() for host in hosts.split(",")}
    proxied = any(name.lower().endswith("_proxy") and name.lower() != "no_proxy" for name in os.environ)
    if proxied and not named & {"*", _LOOPBACK}:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{hosts},{_LOOPBACK}" if hosts else _LOOPBACK


def _reason(error: ValueError | OSError) -> str:
    if isinstance(error, OSError):
        return f"the endpoint in front of the model found no port ({error.strerror})"
    return "its chat_completions_url is no http or https URL"
