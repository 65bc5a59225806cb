"""One model call: asked of the policy, sent upstream, passed on as it comes, and recorded exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from rollbook.traces.calls import CallError, ModelCall

from . import answers, json_codec, sse
from .answers import ErrorAnswer, Headers
from .dialects import openai_chat
from .messages import CallPolicy, Refused, Request, Response
from .relay import Head, Relay
from .route import Route
from .stream import AnswerStream
from .upstream import Answer, Upstream, UpstreamError

log = logging.getLogger(__name__)

ANSWER_MAX_BYTES = 64 * 1024 * 1024
LAST_BYTES_SEC = 1.0
"""How long a stream may take to end after it said that it is done; its connection is closed otherwise."""

OURS = "Rollbook itself failed while it served a model call, the agent and the model did not"
"""How a fault of the endpoint's own is told, to the program and in the record."""

_MESSAGE_MAX_CHARS = 1000
_STATUS_OF_FAILURE = {"timeout": 504}


class Incoming(Struct, frozen=True):
    """What a program sent."""

    request: Request
    url: str
    headers: Headers
    digest: bytes
    """Of the path and the body: equal for an exact repetition."""
    idempotency_key: bytes | None = None
    says_retry: bool = False


class Call:
    """A call from its arrival to its record. It runs as a task of its own, so it outlives the connection it came by."""

    def __init__(
        self, incoming: Incoming, *, route: Route, policy: CallPolicy, upstream: Upstream, orphan_sec: float
    ) -> None:
        self.incoming = incoming
        self.relay = Relay(on_empty=self._orphaned, on_joined=self._joined)
        self.failed = False
        """There is no answer that could be given again."""
        self.task: asyncio.Task[None] | None = None
        self._request = incoming.request
        self._route = route
        self._policy = policy
        self._upstream = upstream
        self._orphan_sec = orphan_sec
        self._orphan_timer: asyncio.TimerHandle | None = None
        self._left = False
        self._tell_back: Callable[[], None] | None = None
        """For the policy that was told that the program has hung up."""
        self._stop_reason: str | None = None
        self._let_through = False
        self._committing = False
        self._recorded = False
        self._started_at = 0
        self._first_chunk_at: int | None = None

    def start(self, *, on_done: Callable[[Call], None]) -> None:
        """Begin; `on_done` is called once nothing runs any more."""
        self.task = asyncio.get_running_loop().create_task(self._run(), name="model call")
        self.task.add_done_callback(lambda task: self._done(task, on_done))

    def stop(self, reason: str) -> None:
        """End the work upstream now and record it as aborted; a turn that is being committed is left to finish."""
        self._keep()
        if self._stop_reason is None and not self._committing and self.task is not None and not self.task.done():
            self._stop_reason = reason
            self.task.cancel()

    def _done(self, task: asyncio.Task[None], on_done: Callable[[Call], None]) -> None:
        if not self.relay.ended:  # cancelled before its first step, or its record failed: nobody waits for that
            self.failed = True
            self._give_up(answers.over())
        # A kept answer needs no more of its call than what tells a retry; conversations are long.
        self._request = Request([])
        self.incoming = msgspec.structs.replace(self.incoming, request=self._request, headers=[])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a model call was not recorded", exc_info=error)
        on_done(self)

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop: nobody joins it any more."""
        return self._stop_reason is not None

    # How many programs wait for it

    def _orphaned(self) -> None:
        if not self.relay.ended and self._stop_reason is None:
            loop = asyncio.get_running_loop()
            reason = f"the program hung up and did not come back within {self._orphan_sec:g} s"
            self._orphan_timer = loop.call_later(self._orphan_sec, self.stop, reason)
            self._left = True
            self._tell_left()

    def _joined(self) -> None:
        self._keep()
        self._left = False
        if self._tell_back is not None:
            self._tell_back()
            self._tell_back = None

    def _tell_left(self) -> None:
        """Tell the policy, once it has let the call through and nobody waits for it."""
        if self._left and self._let_through and not self.relay.ended:
            self._tell_back = self._policy.left(self._request, had_part=self.relay.size > 0)

    def _keep(self) -> None:
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
            self._orphan_timer = None

    # The way of a call

    async def _run(self) -> None:
        try:
            self._request = await self._policy.before(self._request)
            self._let_through = True
            self._tell_left()
            if self._stop_reason is not None:  # a policy that caught its cancellation; nothing is sent any more
                raise asyncio.CancelledError(self._stop_reason)
            await self._exchange()
        except Refused as refused:
            self._refuse(refused)
        except asyncio.CancelledError:
            # Whoever cancels us says why; a loop that is closing does not.
            self._fail("aborted", self._stop_reason or "the process that ran this rollout is ending")
            self._give_up(answers.over())
        except Exception as error:
            log.exception("a rollout could not take a model call")
            message = self._route.hide(f"{OURS}: {error!r}; its traceback is in the runner's log")
            if self._recorded or not self._let_through:
                self._policy.broke(message)
            self._fail("internal", message)
            self._give_up(ErrorAnswer(500, message, "rollout_error"))
        finally:
            self._keep()

    async def _exchange(self) -> None:
        headers = answers.headers_upstream(self.incoming.headers, route=self._route, content_type=answers.JSON_TYPE[1])
        self._started_at = _now()
        try:
            while not await self._exchanged(headers):
                log.debug("a model server takes no stream_options; it is asked without them")
        except UpstreamError as error:
            message = self._route.hide(error.message)
            self._fail(error.kind, message)
            status = _STATUS_OF_FAILURE.get(error.kind, 502)
            self._give_up(ErrorAnswer(status, message, f"upstream_{error.kind}"))

    async def _exchanged(self, headers: Headers) -> bool:
        """Send the request and take the answer; False if it must be sent once more, without what we added."""
        adds_usage = self._request.streamed and not openai_chat.asks_for_usage(self._request)
        with_usage = not (adds_usage and self._route.quirks.no_stream_options)
        body = openai_chat.write_request(self._request, with_usage=with_usage)
        url, silence = self.incoming.url, self._route.read_timeout_sec
        async with self._upstream.send("POST", url, headers=headers, body=body, read_timeout_sec=silence) as answer:
            if not answers.is_good(answer):
                kept, text = await answers.error_of(answer, route=self._route)
                if adds_usage and with_usage and answer.status in (400, 422) and b"stream_options" in text:
                    self._route.quirks.no_stream_options = True
                    return False
                message = self._route.hide(_error_message(answer.status, text))
                self._fail("http", message, status=answer.status)
                self.relay.answer(answer.status, kept, text)
            elif answer.header("content-type").partition(";")[0].strip().lower() == sse.CONTENT_TYPE:
                await self._take_stream(answer)
            else:
                await self._take_whole(answer)
        return True

    async def _take_whole(self, answer: Answer) -> None:
        headers = answers.headers_downstream(answer.headers)
        body = bytearray()
        try:
            async for chunk in answer.chunks():
                body += chunk
                if len(body) > ANSWER_MAX_BYTES:
                    raise UpstreamError("garbage", f"the answer is over {ANSWER_MAX_BYTES} bytes")
        except UpstreamError as error:
            if error.kind != "timeout" or body:
                self.relay.start(Head(answer.status, headers))
                self.relay.write(self._route.hide_in_body(bytes(body)))
            raise
        try:
            fields, response = openai_chat.read_answer(bytes(body))
        except openai_chat.GarbageError as error:
            self._fail("garbage", self._route.hide(str(error)))
            self.relay.answer(answer.status, headers, self._route.hide_in_body(bytes(body)))
            return
        before = openai_chat.copied(response)
        after = await self._commit(response)
        patched = openai_chat.patch_answer(fields, after) if openai_chat.is_changed(before, after) else bytes(body)
        self.relay.answer(answer.status, headers, patched)

    async def _take_stream(self, answer: Answer) -> None:
        drop_usage = not openai_chat.asks_for_usage(self._request)
        stream = AnswerStream(self._request, drop_usage=drop_usage, hide=self._route.hide_in_body)
        head = Head(answer.status, answers.headers_downstream(answer.headers))
        hold_all = self._policy.needs_whole_answer
        if not hold_all:
            self.relay.start(head)
        chunks = answer.chunks()
        try:
            async for chunk in chunks:
                if stream.take(chunk) and self._first_chunk_at is None:
                    self._first_chunk_at = _now()
                if not hold_all:
                    self.relay.write(stream.release())
                    await self.relay.room()
                if stream.done:
                    break
                if stream.size > ANSWER_MAX_BYTES:
                    raise UpstreamError("garbage", f"the answer is over {ANSWER_MAX_BYTES} bytes")
            stream.end()
        except UpstreamError:
            if hold_all:
                self.relay.start(head)
            self.relay.write(stream.held())
            raise
        failure = stream.failure()
        if failure is not None:
            self._fail(failure.kind, self._route.hide(failure.message))
            if hold_all:
                self.relay.start(head)
            self.relay.write(stream.held())
            # Clients take an end without [DONE] for a whole answer, unless the connection breaks.
            self.relay.end(broken=failure.kind == "broken_stream" and not stream.done)
            return
        response = stream.response()
        before = openai_chat.copied(response)
        after = await self._commit(response)
        if hold_all:
            self.relay.start(head)
        changed = hold_all and openai_chat.is_changed(before, after)
        self.relay.write(stream.made_again(after) if changed else stream.held())
        self.relay.end()
        await _last_bytes(chunks)

    # The record

    async def _commit(self, response: Response) -> Response:
        call = self._model_call(response)
        self._committing = self._recorded = True
        try:
            return await self._policy.answered(self._request, response, call)
        finally:
            self._committing = False

    def _fail(self, kind: str, message: str, *, status: int | None = None) -> None:
        self.failed = True
        if self._let_through and not self._recorded:
            self._recorded = True
            error = CallError(kind, message[:_MESSAGE_MAX_CHARS], status)
            self._policy.failed(self._request, self._model_call(None, error=error))

    def _model_call(self, response: Response | None, *, error: CallError | None = None) -> ModelCall:
        ended_at = _now()
        started_at = self._started_at or ended_at
        return ModelCall(
            number=0,
            model=response.model if response is not None and response.model else self._request.model,
            started_at=started_at,
            ended_at=max(started_at, ended_at),
            first_chunk_at=self._first_chunk_at,
            streamed=self._request.streamed,
            finish_reason=None if response is None else response.finish_reason,
            usage=None if response is None else response.usage,
            error=error,
            prompt=None,
            node=None,
            tokens=None if response is None else response.tokens,
        )

    # What the program gets where there is no answer

    def _refuse(self, refused: Refused) -> None:
        self.failed = True
        answer = answers.refused(refused.name)
        if self.relay.head is None:
            self._give_up(answer)
        else:  # the stream has begun: its last event says what its status cannot say any more
            self.relay.write(sse.event(answer.body()))
            self.relay.end(broken=True)

    def _give_up(self, answer: ErrorAnswer) -> None:
        if self.relay.ended:
            return
        if self.relay.head is None:
            self.relay.answer(answer.status, [answers.JSON_TYPE], answer.body())
        else:
            self.relay.end(broken=True)


def _error_message(status: int, body: bytes) -> str:
    try:
        text = openai_chat.error_text(json_codec.decode(body))
    except ValueError:
        text = None
    text = text or body[:_MESSAGE_MAX_CHARS].decode(errors="replace").strip()
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"


async def _last_bytes(chunks: Any) -> None:
    """Read what follows the end of a stream, so that its connection can be used again."""
    try:
        async with asyncio.timeout(LAST_BYTES_SEC):
            async for _ in chunks:
                pass
    except (TimeoutError, UpstreamError):
        log.debug("a stream went on after it said that it was done; its connection is closed")


def _now() -> int:
    return time.time_ns() // 1000
