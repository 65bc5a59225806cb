"""Standard output of user code: lines stay whole whoever prints, and programs may treat it as they are used to."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from rollbook.scheduler.runner.logs import LONGEST_LINE, SecretRegistry, scrub_streams

PRINTERS, LINES = 4, 500


def capture(monkeypatch: pytest.MonkeyPatch) -> io.TextIOWrapper:
    """What reaches the standard streams from now on, scrubbed. No fixture: pytest sets its own streams later."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    scrub_streams(SecretRegistry())
    return stream


def written(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def test_nothing_is_lost_between_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    output = capture(monkeypatch)
    begin = threading.Barrier(PRINTERS)

    def work(name: int) -> None:
        begin.wait(10)
        for number in range(LINES):
            sys.stdout.write(f"<{name}-{number}>\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(PRINTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(written(output).split()) == sorted(f"<{n}-{i}>" for n in range(PRINTERS) for i in range(LINES))


def test_line_without_an_end_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    output = capture(monkeypatch)
    sys.stdout.write("." * LONGEST_LINE)
    assert written(output) == ""
    sys.stdout.write("..")
    assert len(written(output)) == LONGEST_LINE + 2


def test_programs_may_ask_for_the_encoding_and_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    output = capture(monkeypatch)
    assert sys.stdout.encoding == "utf-8"
    assert sys.stdout.errors == "strict"
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stdout.write("é\n")
    assert written(output) == "é\n"
