"""A runner's reports reach the scheduler whatever one of them holds."""

from __future__ import annotations

import asyncio

import msgspec

from rollbook.scheduler.runner.outbox import Outbox
from rollbook.scheduler.wire import Entered, Finished, ToScheduler


class Wire:
    """Encodes as the pipe does, and notes each write."""

    def __init__(self) -> None:
        self.writes: list[list[ToScheduler]] = []

    def send(self, *messages: ToScheduler) -> None:
        for message in messages:
            msgspec.msgpack.encode(message)
        self.writes.append(list(messages))


async def turn_of_the_loop() -> None:
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    await turned.wait()


async def test_reports_of_one_turn_go_in_one_write() -> None:
    wire = Wire()
    outbox = Outbox(wire.send)
    first, second, third = Entered(1, "running"), Finished(1, "success"), Finished(2, "failure")
    outbox.put(first)
    outbox.put(second)
    await turn_of_the_loop()
    outbox.put(third)
    await turn_of_the_loop()
    assert wire.writes == [[first, second], [third]]


async def test_report_without_a_form_becomes_a_failure_and_the_others_go_on() -> None:
    wire = Wire()
    outbox = Outbox(wire.send)
    before, after = Finished(1, "success"), Finished(3, "success")
    for message in (before, Finished(2, "failure", err_message="lone \ud800"), after):
        outbox.put(message)
    await turn_of_the_loop()
    (first,), (second,), (third,) = wire.writes
    assert (first, third) == (before, after)
    assert isinstance(second, Finished)
    assert (second.key, second.status, second.err_category) == (2, "failure", "internal_error")
    outbox.put(before)
    await turn_of_the_loop()
    assert wire.writes[-1] == [before]
