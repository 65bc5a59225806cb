"""Logs never wait for a reader: lines that find no room are dropped, counted, and told once there is room again."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from rollbook.logs import UnwaitingHandler

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def log(handler: UnwaitingHandler, text: str) -> None:
    handler.emit(logging.LogRecord("test", logging.INFO, __file__, 1, text, None, None))


def drain(reader: int) -> str:
    os.set_blocking(reader, False)
    parts = []
    try:
        while part := os.read(reader, 1 << 20):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts).decode()


def test_lines_arrive_whole_and_in_order(pipe: Pipe) -> None:
    handler = UnwaitingHandler(pipe[1])
    long = "x" * 5_000
    for text in ("one", long, "three \ud800"):
        log(handler, text)
    assert drain(pipe[0]).splitlines() == ["one", long, "three \\ud800"]


def test_a_reader_that_does_not_read_holds_nobody_and_is_told_what_it_missed(pipe: Pipe) -> None:
    handler = UnwaitingHandler(pipe[1])
    for number in range(100):
        log(handler, f"{number} " + "x" * 2_000)  # more than any pipe holds
    drain(pipe[0])
    log(handler, "here again")
    told, again = drain(pipe[0]).splitlines()
    assert told.endswith("log lines were dropped: nobody read them")
    assert again == "here again"


def test_a_reader_that_is_gone_is_no_error(pipe: Pipe) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    handler = UnwaitingHandler(writer)
    log(handler, "to nobody")
    os.close(writer)
