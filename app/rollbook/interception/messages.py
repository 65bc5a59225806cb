"""What a model call is to those who decide about it, whatever dialect the program spoke, and the interface they have.

Dialects make a `Request` of a body and a `Response` of an answer; a rollout's `CallPolicy` sees these and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from rollbook.traces.calls import CallTokens, ModelCall, Usage

MessageDict = dict[str, Any]
"""An OpenAI chat message: the form that every dialect is brought to."""


class Request(Struct):
    """What a program asks of the model. A policy may hand back a changed one."""

    messages: list[MessageDict]
    tools: list[dict[str, Any]] | None = None
    """As sent; None where the body has no tools."""
    model: str | None = None
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    """The rest of the body: temperature, max_tokens, tool_choice and whatever else was sent, unchanged."""
    streamed: bool = False
    """Whether the answer is to come in chunks."""


class Response(Struct):
    """What the model answered: one message, also where it came in chunks."""

    message: MessageDict
    finish_reason: str | None = None
    usage: Usage | None = None
    """None where the upstream sent none or nothing usable."""
    tokens: CallTokens | None = None
    """None where the upstream sent neither token ids nor log probabilities."""
    model: str | None = None
    """The model that answered, as the upstream names it."""


class Refused(Exception):
    """The rollout takes no further turn; `name` is the limit or the hook that says so.

    The program gets HTTP 400, ``{"error": {"message": "rollout stopped: NAME", "type": "rollout_stopped"}}``.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"rollout stopped: {name}")
        self.name = name


class CallPolicy(Protocol):
    """What a rollout decides about each of its model calls. The endpoint asks it on the event loop.

    For every call that `before` let through, exactly one of `answered` and `failed` follows. Calls of one rollout
    may overlap. An exception other than `Refused`, the policy's own or the endpoint's, is a fault of ours and fails
    that call alone: the program gets HTTP 500. It is told by `failed`, with an error of the kind `internal`, where the
    call is to be recorded still, else by `broke`.
    """

    @property
    def needs_whole_answer(self) -> bool:
        """Whether a streamed answer is held back until `answered` has returned. Read once for each call."""
        ...

    async def before(self, request: Request) -> Request:
        """Decide about a request before it goes upstream; return it, or a changed one.

        Raises:
            Refused: the rollout has stopped.
        """
        ...

    async def answered(self, request: Request, response: Response, call: ModelCall) -> Response:
        """Commit the turn; return the response, or one with another text.

        `request` is what `before` returned. `call.number` is 0: numbering is the trace's. Of a changed response the
        text and the finish reason count. The text of a stream that was not held back is with the program already.

        Raises:
            Refused: the rollout has stopped; the program does not get the answer (a stream that is on its way ends
                without its last chunks).
        """
        ...

    def failed(self, request: Request, call: ModelCall) -> None:
        """Note a call that brought no answer; `call.error` says why."""
        ...

    def left(self, request: Request, *, had_part: bool) -> Callable[[], None]:
        """Note that every program that waited for a call has hung up before its end; the call goes on for a while.

        `request` is what `before` returned, and `had_part` says whether some of the answer had been passed on. What
        is returned is called if a program comes back for the answer, also after the end of the call.
        """
        ...

    def broke(self, message: str) -> None:
        """Note a fault of ours on a call that was not let through yet, or is recorded already."""
        ...
