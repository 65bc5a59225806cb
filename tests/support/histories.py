"""Histories of a few rollouts, written into an empty ledger through its store."""

from __future__ import annotations

import json

import msgspec

from rollbook.ledger import commands as cmd
from rollbook_client import events as ev
from rollbook_client.events import StageSpan
from tests.support.ledger import (
    CALLED,
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
    record,
    rescore,
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


def recorded_and_scored_anew(writer: Writing) -> None:
    """t-1 records all it may and is scored twice after its end; t-2 is lost, then succeeds; t-3 still runs."""
    step = writer.clock.forward
    writer.batch(api(), scheduler(), *(admit(f"t-{i}", label=f"sums/{i}") for i in range(1, 4)))
    step(1)
    writer.do(claim())
    failed = ev.ModelCalled(
        attempt=0,
        call=2,
        model=None,
        started_at=START_US,
        ended_at=START_US + 7,
        first_chunk_at=START_US + 3,
        streamed=True,
        cached_input_tokens=0,
        error_kind="http",
        error="503",
        purpose="judge:style",
    )
    writer.batch(
        record(ev.StageTimed(attempt=0, spans=(StageSpan("boot", START_US, START_US + 5),)), rollout_id="t-1"),
        record(CALLED, failed, rollout_id="t-1"),
        record(CALLED, rollout_id="t-2"),
        record(CALLED, rollout_id="t-3"),
    )
    step(1)
    writer.do(
        record(
            ev.MessageRewritten(attempt=0, hook="shorten", side="request", call=1),
            ev.MessageRewritten(attempt=0, hook="soften", side="response"),
            ev.ExchangeStopped(attempt=0, condition="max_turns"),
            ev.RewardRecorded(attempt=0, name="exact", value=1.0, weight=0.5),
            ev.RewardRecorded(attempt=0, name="style", value=None),
            ev.MetricRecorded(attempt=0, name="length", value=3.0),
            ev.TraceSaved(attempt=0, version=1, size_bytes=2, data="eJyrBQABdQD5"),
            rollout_id="t-1",
        )
    )
    writer.batch(finish("t-1", rewards=()), close("t-2"))
    step(1)
    writer.do(claim())
    writer.batch(record(rollout_id="t-2", attempt=2), finish("t-2", attempt=2))
    step(60)
    style = cmd.Score("style", 0.25)
    writer.do(rescore("t-1", scores=(cmd.Score("exact", 0.0), style), weights={"exact": 0.5, "style": 1.0}))
    step(1)
    writer.do(rescore("t-1", scores=(cmd.Score("exact", None), style), weights={"exact": 0.5, "style": 1.0}))


def texts_in_every_place(writer: Writing, text: str) -> None:
    """A text wherever somebody else's text is kept."""
    words = text.replace("/", "-")
    writer.batch(scheduler(), admit("r-1", label=words), admit("r-2"), admit("r-3"))
    writer.do(claim(limit=2))
    called = ev.ModelCalled(
        attempt=0,
        call=1,
        model=words,
        started_at=0,
        ended_at=2**62,
        input_tokens=2**62,
        output_tokens=2**62,
        finish_reason=words,
        error_kind=words,
        error=words,
    )
    writer.batch(
        record(
            called,
            msgspec.structs.replace(called, purpose=words),
            ev.MessageRewritten(attempt=0, hook=words, side="request"),
            ev.ExchangeStopped(attempt=0, condition=words),
        ),
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
        rescore(task=words, by=words, scores=(cmd.Score(words, 1e308),), weights={words: 2.0}),
    )
