"""Histories of a few rollouts, written into an empty ledger through its store."""

from __future__ import annotations

import json

from rollbook.ledger import commands as cmd
from rollbook_client.events import StageSpan
from tests.support.ledger import (
    SECOND_US,
    START_US,
    Writing,
    admit,
    api,
    cancel,
    claim,
    close,
    enter,
    finish,
    poll,
    scheduler,
)

HARD_TEXTS = [
    "\x00",
    "\ud800",
    "'; DROP TABLE events; --",
    "\x1b[31m",
    "x" * 100_000,
    "%s{iso:x}:y",
    "\U0001f600\u2028",
]


def interleaved(writer: Writing) -> None:
    """Histories that alternate in an empty ledger: some over, some open."""
    writer.batch(scheduler(), *(admit(f"r-{i}") for i in range(1, 7)))
    writer.do(claim(limit=3))
    writer.batch(*(enter(f"r-{i}") for i in range(1, 4)), *(poll(f"r-{i}") for i in range(1, 7)))
    writer.batch(finish("r-1"), close("r-2"), cancel("r-4"))
    writer.do(claim(limit=1))


def one_of_each_ending(writer: Writing) -> None:
    """r-1 is lost once and then succeeds; r-2 is cancelled while it waits; r-3 loses its lease."""
    step = writer.clock.forward
    writer.batch(api(), scheduler(), admit("r-1", label="six"))
    step(1)
    writer.do(claim())
    writer.do(enter())
    step(1.5)
    writer.do(close(reason="runner killed"))
    writer.do(claim())
    step(1)
    writer.do(enter(attempt=2))
    writer.do(poll())
    spans = (
        StageSpan("agent", START_US + 3 * SECOND_US, START_US + 4 * SECOND_US),
        StageSpan("grading", START_US + 4 * SECOND_US, START_US + 4_250_000),
    )
    step(1)
    writer.do(
        finish(
            attempt=2,
            spans=spans,
            rewards=(cmd.Score("exact", 1.0), cmd.Score("style", 0.5), cmd.Score("never", None)),
            metrics=(cmd.Score("tokens", 12.0),),
        )
    )
    writer.batch(admit("r-2"), admit("r-3"))
    step(2)
    writer.do(cancel("r-2", requested_by="api"))
    step(121)
    writer.do(cmd.Beat("a-1"))
    writer.do(poll("r-3"))


def texts_in_every_place(writer: Writing, text: str) -> None:
    """A text wherever somebody else's text is kept."""
    words = text.replace("/", "-")
    writer.batch(scheduler(), admit("r-1", label=words), admit("r-2"), admit("r-3"))
    writer.do(claim(limit=2))
    writer.batch(
        finish(
            "r-1",
            status="failure",
            err_message=words,
            sample=json.dumps({"messages": [words]}).encode(),
            spans=(StageSpan(words, 0, 2**62),),
            rewards=(cmd.Score(words, 1e308), cmd.Score("more", 1e308)),
            metrics=(cmd.Score(words, -5e-324),),
        ),
        close("r-2", reason=words),
        cancel("r-3", requested_by=words),
    )
