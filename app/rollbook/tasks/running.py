"""Running the hooks of a task on model calls: interceptors rewrite, stops decide, and what breaks a rule is refused.

Hooks are given copies, and of what they return only the texts that they may rewrite are taken over.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Container, Sequence
from typing import Any

import msgspec

from rollbook.backends.failures import failure_of
from rollbook.backends.json_form import is_plain, plain
from rollbook.interception.messages import Request, Response
from rollbook.sdk.values import MessageDict, shown
from rollbook.tasks.arguments import Given, Missing, arguments_of
from rollbook.tasks.errors import TaskError
from rollbook.tasks.hooks import Hook
from rollbook.tasks.methods import line_of
from rollbook.tasks.patience import patiently
from rollbook.traces.trace import Rewrite
from rollbook_client.jsons import copied

__all__ = ["call_hook", "first_stop", "raised_by", "run_request_interceptors", "run_response_interceptors"]

log = logging.getLogger(__name__)

_REWRITABLE_ROLES = ("user", "tool")
_REWRITABLE_FIELDS = frozenset({"content", "name"})


async def run_request_interceptors(
    hooks: Sequence[Hook], request: Request, given: Given, *, new: Container[int], call: int | None = None
) -> tuple[Request, list[Rewrite]]:
    """Have the request interceptors `hooks` rewrite messages whose indices are in `new`; the others have been seen.

    Returns a new request, and what each hook rewrote. Raises `TaskError` naming the hook for one that raises or
    changes anything but the content or the name of new user and tool messages.
    """
    rewrites: list[Rewrite] = []
    for hook in hooks:
        after = await _intercepted(hook, request, given)
        changed = _changed_messages(request, after, new=new, hook=hook)
        if not changed:
            continue
        messages = [changed.get(index, message) for index, message in enumerate(request.messages)]
        before = [request.messages[index] for index in changed]
        rewrites.append(Rewrite(hook=hook.name, side="request", call=call, before=before, after=list(changed.values())))
        request = msgspec.structs.replace(request, messages=messages)
    return request, rewrites


async def run_response_interceptors(
    hooks: Sequence[Hook], response: Response, given: Given, *, call: int | None = None
) -> tuple[Response, list[Rewrite]]:
    """Have the response interceptors `hooks` rewrite the assistant's text.

    A rewritten response ends with "stop" and has no tokens: those that were sampled are not those of its text.
    Tool calls, reasoning and the provider's own fields stay as they came. Raises `TaskError` naming the hook for
    one that raises or changes anything else.
    """
    rewrites: list[Rewrite] = []
    for hook in hooks:
        after = await _intercepted(hook, response, given)
        text = _changed_text(response, after, hook=hook)
        if text is None:
            continue
        before, message = response.message, response.message | {"content": text}
        rewrites.append(Rewrite(hook=hook.name, side="response", call=call, before=[before], after=[message]))
        response = msgspec.structs.replace(response, message=message, finish_reason="stop", tokens=None)
    return response, rewrites


async def first_stop(hooks: Sequence[Hook], given: Given, *, boundary: Request | Response | None = None) -> str | None:
    """The name of the first of the stops `hooks` that ends the rollout here, None if none does.

    `boundary` is the request or the response that they look at; each gets a copy of it. Raises `TaskError` naming
    the hook for one that raises or answers no bool.
    """
    for hook in hooks:
        answer = await _guarded(hook, given, boundary=None if boundary is None else _own(boundary))
        if not isinstance(answer, bool):
            raise TaskError(f"{hook.who} returned {shown(answer)}; have it return True or False", hook=hook.name)
        if answer:
            return hook.name
    return None


async def call_hook(hook: Hook, given: Given, *, boundary: Request | Response | None = None) -> Any:
    """Call a hook, plain or async, and return what it returns; whatever it raises is raised. See `patiently`."""
    positional, named = arguments_of(hook.parameters, given, boundary=boundary)
    value = getattr(given.owner, hook.name)(*positional, **named)
    if not inspect.isawaitable(value):
        return value
    given.hooks_at_work.append(hook.who)
    try:
        return await patiently(value, hook.who)
    finally:
        given.hooks_at_work.remove(hook.who)


async def _intercepted[T: Request | Response](hook: Hook, boundary: T, given: Given) -> T:
    """What an interceptor makes of a copy: the one it returns, or where it returns None, the copy as it left it."""
    own = _own(boundary)
    answer = await _guarded(hook, given, boundary=own)
    if answer is None:
        return own
    if type(answer) is not type(boundary):
        raise TaskError(
            f"{hook.who} returned {shown(answer)}; have it return the {type(boundary).__name__}, or nothing",
            hook=hook.name,
        )
    return answer


def _own[T: Request | Response](boundary: T) -> T:
    """A copy for a hook to do with as it likes."""
    fields = {name: copied(getattr(boundary, name)) for name in boundary.__struct_fields__}
    return msgspec.structs.replace(boundary, **fields)


async def _guarded(hook: Hook, given: Given, *, boundary: Request | Response | None) -> Any:
    """Call a hook; what it raises becomes a `TaskError` that names it. A cancellation from outside stays one."""
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    try:
        return await call_hook(hook, given, boundary=boundary)
    except TaskError as error:
        raise TaskError(f"{hook.who}: {error}", hook=hook.name) from error
    except Missing as error:
        raise TaskError(f"{hook.who}: {error}", hook=hook.name) from error
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > cancelled_before:
            raise
        log.error("rollout %s: %s failed", given.trace.rollout_id, hook.who, exc_info=error)
        raise TaskError(raised_by(hook, error, given), hook=hook.name) from error


def raised_by(hook: Hook, error: BaseException, given: Given) -> str:
    """What a hook raised and where, as text: ``@stop Sums.too_long raised KeyError: 'role' (sums.py, line 40)``."""
    failure = failure_of(error, "the hook")
    place = line_of(error, getattr(given.owner, hook.name))
    return f"{hook.who} raised {type(error).__name__}: {failure.message}{place}"


def _changed_messages(before: Request, after: Request, *, new: Container[int], hook: Hook) -> dict[int, MessageDict]:
    """The messages that a request interceptor rewrote, by index; raises `TaskError` for what it must not do."""
    for name in ("tools", "model", "params", "streamed"):
        if getattr(before, name) != getattr(after, name):
            raise _violation(hook, f"changed the request's {name}")
    if not isinstance(after.messages, list) or len(after.messages) != len(before.messages):
        raise _violation(hook, "added or removed messages")
    changed: dict[int, MessageDict] = {}
    for index, (old, rewritten) in enumerate(zip(before.messages, after.messages, strict=True)):
        if rewritten != old:
            if index not in new:
                raise _violation(hook, f"changed message {index}, which an earlier turn has seen")
            changed[index] = _rewritten(old, rewritten, index=index, hook=hook)
    return changed


def _rewritten(old: MessageDict, new: Any, *, index: int, hook: Hook) -> MessageDict:
    if not isinstance(new, dict):
        raise _violation(hook, f"made message {index} {shown(new)}")
    role = old.get("role")
    if new.get("role") != role:
        raise _violation(hook, f"changed the role of message {index}")
    if role not in _REWRITABLE_ROLES:
        raise _violation(hook, f"changed message {index}, which is a {role} message")
    if new.get("tool_call_id") != old.get("tool_call_id"):
        raise _violation(hook, f"changed the tool_call_id of message {index}")
    fields = {name for name in {*old, *new} if name not in old or name not in new or old[name] != new[name]}
    if others := sorted(str(name) for name in fields - _REWRITABLE_FIELDS):
        raise _violation(hook, f"changed {', '.join(others)} of message {index}")
    content = new.get("content")
    parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if not isinstance(content, str) and not parts:
        raise _violation(hook, f"made the content of message {index} {shown(content)}, which is neither text nor parts")
    try:
        own: MessageDict = plain(new)
        if is_plain(own):
            return own
    except (TypeError, ValueError, RecursionError) as error:
        raise _violation(hook, f"gave message {index} a content without JSON form ({error})") from error
    raise _violation(hook, f"gave message {index} a content with a number that is not finite")


def _changed_text(before: Response, after: Response, *, hook: Hook) -> str | None:
    """The text a response interceptor put in the old one's place, None if it left it; raises for all else it did."""
    for name in ("usage", "tokens", "model"):
        if getattr(before, name) != getattr(after, name):
            raise _violation(hook, f"changed the response's {name}")
    if not isinstance(after.message, dict):
        raise _violation(hook, f"made the message {shown(after.message)}")
    old, new = before.message, after.message
    fields = {name for name in {*old, *new} if name not in old or name not in new or old[name] != new[name]}
    if others := sorted(str(name) for name in fields - {"content"}):
        raise _violation(hook, f"changed {', '.join(others)} of the message")
    if after.finish_reason not in (before.finish_reason, "stop" if fields else before.finish_reason):
        raise _violation(hook, "changed the finish reason")
    if not fields:
        return None
    text = new.get("content")
    if not isinstance(text, str):
        raise _violation(hook, f"made the content {shown(text)}, which is no text")
    return str.__str__(text)


def _violation(hook: Hook, what: str) -> TaskError:
    may = (
        "a request interceptor may rewrite the content of new user and tool messages, nothing else"
        if hook.boundary == "request"
        else "a response interceptor may rewrite the assistant's text, nothing else"
    )
    return TaskError(f"{hook.who} {what}; {may}", hook=hook.name)
