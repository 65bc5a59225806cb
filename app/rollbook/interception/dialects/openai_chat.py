"""OpenAI's chat completions: bodies become requests and back, answers become responses, patched ones are written.

Answers in chunks are put together in `openai_chunks`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollbook.interception import json_codec, sse
from rollbook.interception.messages import MessageDict, Request, Response
from rollbook.traces.calls import Usage

from .openai_tokens import choice_tokens

PATH = "/chat/completions"
DONE = b"[DONE]"

_OWN_FIELDS = ("messages", "tools", "model", "stream")
_USAGE_OPTION = "include_usage"


class BadBodyError(ValueError):
    """A program's body is no chat request; the message is for the program."""


class GarbageError(ValueError):
    """An upstream's answer is no chat completion; the message says what is wrong with it."""


def read_request(body: bytes) -> Request:
    """The request of a body.

    Raises:
        BadBodyError: the body is no JSON, or no chat request.
    """
    try:
        fields = json_codec.decode(body)
    except ValueError as error:
        raise BadBodyError(f"the body is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadBodyError("the body must be a JSON object")
    messages, tools, model = fields.get("messages"), fields.get("tools"), fields.get("model")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadBodyError("messages must be a list of objects")
    if tools is not None and (not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools)):
        raise BadBodyError("tools must be a list of objects")
    if model is not None and not isinstance(model, str):
        raise BadBodyError("model must be a string")
    params = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
    return Request(messages, tools, model, params, streamed=bool(fields.get("stream")))


def asks_for_usage(request: Request) -> bool:
    """Whether the program itself wants the usage at a stream's end."""
    options = request.params.get("stream_options")
    return isinstance(options, dict) and bool(options.get(_USAGE_OPTION))


def write_request(request: Request, *, with_usage: bool) -> bytes:
    """The body that goes upstream; `with_usage` asks for the usage at a stream's end."""
    fields: dict[str, Any] = {}
    if request.model is not None:
        fields["model"] = request.model
    fields["messages"] = request.messages
    if request.tools is not None:
        fields["tools"] = request.tools
    fields |= request.params
    if request.streamed:
        fields["stream"] = True
        if with_usage:
            options = request.params.get("stream_options")
            fields["stream_options"] = {**(options if isinstance(options, dict) else {}), _USAGE_OPTION: True}
    return json_codec.encode(fields)


def choices_asked(request: Request) -> int:
    """How many answers the program wants at once; the first of them is the one that is recorded."""
    number = request.params.get("n")
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 1


def read_answer(body: bytes) -> tuple[dict[str, Any], Response]:
    """The answer's fields and its response.

    Raises:
        GarbageError: this is no chat completion.
    """
    try:
        fields = json_codec.decode(body)
    except ValueError as error:
        raise GarbageError(f"the answer is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise GarbageError("the answer is no JSON object")
    choice = _first_choice(fields)
    message = choice.get("message") if choice is not None else None
    if choice is None or not isinstance(message, dict):
        raise GarbageError(error_text(fields) or "the answer has no choices[0].message")
    finish_reason, model = choice.get("finish_reason"), fields.get("model")
    return fields, Response(
        message={"role": "assistant", **message},
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        usage=Usage.parse(fields.get("usage")),
        tokens=choice_tokens(fields, choice),
        model=model if isinstance(model, str) else None,
    )


def patch_answer(fields: dict[str, Any], response: Response) -> bytes:
    """The answer with the response's text and finish reason; tokens of another text are left out."""
    choice = _first_choice(fields) or {}
    kept = {name: value for name, value in choice.items() if name not in ("logprobs", "token_ids")}
    message = {**choice["message"], "content": response.message.get("content")}
    patched = {**kept, "message": message, "finish_reason": response.finish_reason}
    choices = [patched if other is choice else other for other in fields["choices"]]
    return json_codec.encode({**fields, "choices": choices})


def write_stream(response: Response, first_chunk: dict[str, Any], *, usage: Any) -> bytes:
    """A response as a whole stream, under the id of the first chunk that came; `usage` is its last chunk's, or None."""
    common = {
        name: value for name, value in first_chunk.items() if name not in ("choices", "usage", "prompt_token_ids")
    }
    tool_calls = [{"index": index, **call} for index, call in enumerate(response.message.get("tool_calls") or ())]
    # None of these is one that a policy changes, so they are passed on whole.
    extras = {name: value for name, value in response.message.items() if name not in ("role", "content", "tool_calls")}
    delta: MessageDict = {"role": "assistant", "content": response.message.get("content"), **extras}
    if tool_calls:
        delta["tool_calls"] = tool_calls
    chunks: list[dict[str, Any]] = [
        {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": response.finish_reason}]},
    ]
    if usage is not None:
        chunks.append({**common, "choices": [], "usage": usage})
    return b"".join([*(sse.event(json_codec.encode(chunk)) for chunk in chunks), sse.event(DONE)])


def is_changed(before: Response, after: Response) -> bool:
    """Whether a policy changed what a policy may change: the text and the finish reason."""
    return after.message.get("content") != before.message.get("content") or after.finish_reason != before.finish_reason


def copied(response: Response) -> Response:
    """A response of its own message, so that changes to it leave the first one as it was."""
    return msgspec.structs.replace(response, message=dict(response.message))


def error_text(fields: Any) -> str | None:
    """The message of an error object, in any of the forms that servers give it; None where there is none."""
    if not isinstance(fields, dict):
        return None
    error = fields.get("error", fields.get("detail", fields.get("message")))
    if isinstance(error, dict):
        error = error.get("message", error)
    if error is None:
        return None
    return error if isinstance(error, str) else json_codec.encode(error).decode()


def _first_choice(fields: dict[str, Any]) -> dict[str, Any] | None:
    choices = fields.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        return None
    first: dict[str, Any] = next((choice for choice in choices if choice.get("index") == 0), choices[0])
    return first
