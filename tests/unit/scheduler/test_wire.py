"""Frames between a scheduler and its runner arrive whole, in order and unchanged, however the bytes are cut."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.scheduler.runner.outbox import Outbox
from rollbook.scheduler.wire import (
    Assignment,
    Cancel,
    Entered,
    Finished,
    FramePipe,
    FrameTooLongError,
    Ready,
    Staged,
    ToScheduler,
)
from rollbook_client.events import StageSpan

MESSAGES: list[msgspec.Struct] = [
    Ready(None),
    Entered(1, "running"),
    Staged(1, "agent", 1_700_000_000_000_000, 12.5, "the agent is late"),
    Finished(2, "success", phases=("running", "grading"), sample=b'{"x":"' + b"y" * 700_000 + b'"}', reward=0.0),
    Finished(3, "failure", err_message="a\x00b", spans=(StageSpan("agent", 1, 2),), metrics={"n": None}),
]


def frames(messages: list[msgspec.Struct]) -> bytes:
    parts = [msgspec.msgpack.encode(message) for message in messages]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@settings(max_examples=settings().max_examples // 4)  # each goes through some megabytes
@given(st.lists(st.integers(min_value=1, max_value=400_000), min_size=1, max_size=20))
def test_messages_survive_any_cut_of_the_bytes(sizes: list[int]) -> None:
    seen: list[ToScheduler] = []
    pipe = FramePipe[ToScheduler](ToScheduler, seen.append, lambda: None)  # type: ignore[arg-type]
    data = memoryview(frames(MESSAGES))
    turn = 0
    while data:
        view = pipe.get_buffer(-1)
        size = min(len(view), sizes[turn % len(sizes)], len(data))
        view[:size] = data[:size]
        view.release()
        pipe.buffer_updated(size)
        data = data[size:]
        turn += 1
    assert seen == MESSAGES


async def test_messages_cross_a_real_socket_and_the_end_is_told_once() -> None:
    ours, theirs = socket.socketpair()
    seen: list[ToScheduler] = []
    closed: list[bool] = []
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_close() -> None:
        closed.append(True)
        ended.set()

    _, sender = await loop.create_unix_connection(
        lambda: FramePipe[ToScheduler](ToScheduler, seen.append, lambda: None),  # type: ignore[arg-type]
        sock=ours,
    )
    await loop.create_unix_connection(
        lambda: FramePipe[ToScheduler](ToScheduler, seen.append, on_close),  # type: ignore[arg-type]
        sock=theirs,
    )
    sender.send(*MESSAGES)
    sender.close()
    async with asyncio.timeout(10):
        await ended.wait()
    assert seen == MESSAGES
    assert closed == [True]


def test_a_message_to_a_closed_pipe_is_dropped() -> None:
    pipe = FramePipe[ToScheduler](ToScheduler, lambda message: None, lambda: None)  # type: ignore[arg-type]
    pipe.send(Cancel(1))


def test_an_assignment_keeps_the_request_bytes() -> None:
    request = b'{"big":123456789012345678901234567890,"s":"\\ud800"}'
    sent = Assignment(1, "r", request, "http://x", None, 0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Assignment).request == request


@pytest.mark.parametrize("status", ["success", "failure", "cancelled"])
def test_every_ending_has_a_form(status: str) -> None:
    report = msgspec.convert({"key": 1, "status": status}, dict)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(["finished", 1, report["status"]]), type=Finished).key == 1


async def test_message_over_the_limit_is_refused_before_anything_is_sent() -> None:
    ours, theirs = socket.socketpair()
    seen: list[ToScheduler] = []
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    _, sender = await loop.create_unix_connection(
        lambda: FramePipe[ToScheduler](
            ToScheduler,  # type: ignore[arg-type]
            seen.append,
            lambda: None,
            max_frame_bytes=1000,
        ),
        sock=ours,
    )
    await loop.create_unix_connection(
        lambda: FramePipe[ToScheduler](ToScheduler, seen.append, ended.set),  # type: ignore[arg-type]
        sock=theirs,
    )
    outbox = Outbox(sender.send)
    outbox.put(Finished(1, "success"))
    outbox.put(Finished(2, "success", sample=b"y" * 1001))
    outbox.put(Finished(3, "success"))
    with pytest.raises(FrameTooLongError, match="return a smaller result"):
        sender.send(Entered(4, "running"), Finished(4, "success", sample=b"y" * 1001))
    outbox.flush()
    sender.close()
    async with asyncio.timeout(10):
        await ended.wait()
    first, second, third = seen
    assert (first, third) == (Finished(1, "success"), Finished(3, "success"))
    assert isinstance(second, Finished)
    assert (second.status, second.err_category) == ("failure", "internal_error")
    assert second.err_message is not None
    assert "the limit is 1000; return a smaller result" in second.err_message
