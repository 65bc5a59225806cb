"""`rollbook trace`: what a stored trace says to people, the same whole for programs, and why there is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook.ledger.archives.moving import archive
from rollbook.traces.calls import CallError, CallTokens, ModelCall, Usage
from rollbook.traces.storage import dumps, loads
from rollbook.traces.trace import Rewrite, Span, Trace, TraceError
from rollbook_client.events import TraceSaved
from tests.support import ledger as make
from tests.support.commands import CommandLine
from tests.support.saved_traces import played, run_rollout, saved
from tests.unit.cli.terminals import terminal

_STYLES = re.compile(r"\x1b\[\d*m")
AT = 1795967744542724


def eventful() -> Trace:
    """Two branches, a call that failed, rewrites, scores that did not come back, and an error."""
    trace = Trace(rollout_id="r-1", task={"id": "sum-7", "amounts": [1, 20, 300]}, harness="chat", ok=True)
    system = {"role": "system", "content": "Add up."}
    user = {"role": "user", "content": "The sum,\n  please. " + "And do not hurry. " * 40}
    asked = {"id": "c", "type": "function", "function": {"name": "run", "arguments": '{"command": "cat a"}'}}
    prompt = trace.commit_prompt([system, user])
    tokens = CallTokens([1, 2, 3], [4, 5], [-0.5, -0.25])
    trace.commit_call(
        ModelCall(
            model="m-1",
            started_at=AT,
            first_chunk_at=AT + 42_000,
            ended_at=AT + 1_500_000,
            finish_reason="tool_calls",
            usage=Usage(12, 7, cached_input_tokens=5),
            tokens=tokens,
        ),
        {"role": "assistant", "content": None, "reasoning_content": "Look first.", "tool_calls": [asked]},
        prompt,
    )
    failed = CallError("http", "HTTP 503: busy", 503)
    trace.commit_call(ModelCall(started_at=AT, ended_at=AT + 5_000, error=failed), None, None)
    other = trace.commit_prompt(
        [system, {"role": "user", "content": [{"type": "text", "text": "Anew"}, {"type": "x"}]}]
    )
    trace.commit_call(
        ModelCall(started_at=AT, ended_at=AT + 9_000, finish_reason="stop", usage=Usage(8, 1)),
        {"role": "assistant", "content": "321"},
        other,
    )
    before, after = {"role": "user", "content": "It is 321."}, {"role": "user", "content": "It is […]."}
    trace.request_rewrites = [Rewrite("no_hints", "request", None, [before], [after])]
    trace.stop_condition = "max_turns"
    trace.rewards, trace.weights = {"right": 0.25, "style": None}, {"right": 2.0, "style": 0.5}
    trace.metrics = {"words": None, "turns": 2.0}
    trace.errors = [TraceError("scoring", "JudgeError", "the judge style gave no answer within 120 s", "http_error")]
    trace.spans = [Span("boot", AT, AT + 1_000), Span("setup", AT, AT + 2_000), Span("agent", AT, AT + 3_000_000)]
    trace.extra_usage = [ModelCall(started_at=AT, ended_at=AT + 120_000_000, purpose="judge:style")]
    trace.info = {"report": "all\x1b[2J done"}
    return trace


def section(out: str, title: str) -> list[list[str]]:
    """The lines below a title, without the header, in words."""
    found = next(part for part in out.split("\n\n") if part.splitlines()[0].startswith(title))
    return [line.split() for line in found.splitlines()[2:]]


def test_a_trace_is_told_in_parts(rollbook: CommandLine, writer: make.Writing) -> None:
    run_rollout(writer, "r-1", saved(eventful()))
    told = rollbook("trace", "r-1")
    assert (told.code, told.err) == (0, "")
    facts = [line.split(maxsplit=1) for line in told.out.split("\n\n")[0].splitlines()]
    assert facts[:4] == [["rollout", "r-1"], ["attempt", "1 of 1"], ["task", "sum-7"], ["harness", "chat"]]
    assert ["reward", "0.5"] in facts
    assert ["stop", "condition  max_turns"] in facts
    assert ["failed", "no"] in facts
    assert section(told.out, "task") == [["id", "sum-7"], ["amounts", "[1,20,300]"]]
    assert [row[0] for row in section(told.out, "times")] == ["boot", "setup", "agent", "finalize", "scoring"]
    assert section(told.out, "times")[2][-2:] == ["3.000", "s"]
    assert section(told.out, "times")[3][1:] == ["did", "not", "run"]
    assert section(told.out, "rewrites") == [["no_hints", "request", "It", "is", "321.", "It", "is", "[…]."]]
    assert section(told.out, "scores") == [
        ["reward", "right", "0.25", "2"],
        ["reward", "style", "null", "0.5"],
        ["metric", "words", "null"],
        ["metric", "turns", "2"],
    ]
    assert section(told.out, "errors")[0][:3] == ["scoring", "http_error", "JudgeError"]
    assert section(told.out, "info") == [["report", "all\\x1b[2J", "done"]]


def test_each_message_is_there_once_on_its_branch_and_shortened(rollbook: CommandLine, writer: make.Writing) -> None:
    run_rollout(writer, "r-1", saved(eventful()))
    out = rollbook("trace", "r-1").out
    first, second = section(out, "branch 0"), section(out, "branch 1, the sample")
    assert [row[:2] for row in first] == [["0", "system"], ["1", "user"], ["2", "1"]]
    assert " ".join(first[1][2:]).startswith("The sum, please. And do not hurry.")
    assert first[1][-1].endswith("…")
    assert " ".join(first[2][3:]) == '[reasoning: Look first.] -> run({"command": "cat a"})'
    assert second == [["0", "system", "(is", "above)"], ["3", "user", "Anew", "[x]"], ["4", "3", "assistant", "321"]]
    assert out.count("Add up.") == 1


def test_each_call_has_its_tokens_and_how_it_ended(rollbook: CommandLine, writer: make.Writing) -> None:
    run_rollout(writer, "r-1", saved(eventful()))
    calls = [" ".join(row) for row in section(rollbook("trace", "r-1").out, "model calls")]
    assert calls == [
        "1 policy m-1 1.500 s 42 ms 12 5 7 ids, logprobs tool_calls",
        "2 policy 5.0 ms null null http: HTTP 503: busy",
        "3 policy 9.0 ms 8 1 stop",
        "judge:style 120.000 s null null",
    ]


def test_json_is_the_whole_trace_and_needs_no_task(rollbook: CommandLine, writer: make.Writing) -> None:
    trace = eventful()
    run_rollout(writer, "r-1", saved(trace))
    told = rollbook("trace", "r-1", "--json")
    assert told.code == 0
    assert told.out == dumps(trace).decode() + "\n"
    assert loads(told.out).branches == trace.branches


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal(
    rollbook: CommandLine, writer: make.Writing, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    run_rollout(writer, "r-1", saved(eventful()))
    with terminal(monkeypatch, columns=columns) as screen:
        assert rollbook("trace", "r-1").code == 0
        lines = [_STYLES.sub("", line) for line in screen.lines()]
    assert max(map(len, lines)) <= columns
    assert any("cat a" in line for line in lines)


def test_what_a_failed_rollout_was_given_is_told_as_no_reward(rollbook: CommandLine, writer: make.Writing) -> None:
    failed = TraceError("scoring", "ValueError", "@reward Sums.short raised ValueError: no", "validation_error")
    run_rollout(writer, "r-1", saved(played(ok=False, rewards={"right": 1.0, "short": None}, errors=[failed])))
    out = rollbook("trace", "r-1").out
    assert "failed          yes, in scoring: @reward Sums.short raised ValueError: no\n" in out
    assert "reward          1, which does not count: the rollout failed\n" in out


def test_a_later_scoring_is_named_beside_the_runs_own(rollbook: CommandLine, writer: make.Writing) -> None:
    run_rollout(writer, "r-1", saved(played("42", rewards={"right": 0.0})))
    assert "scored since" not in rollbook("trace", "r-1").out
    writer.do(make.rescore("r-1", reward=None))
    out = rollbook("trace", "r-1").out
    assert "scored since    reward null in scoring 1 by cli:alice: tasks:Sums\n" in out
    assert section(out, "scores of the run itself") == [["reward", "right", "0", "1"]]


def test_earlier_attempts_have_traces_of_their_own(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.batch(make.scheduler(), make.admit("r-1"))
    writer.batch(make.claim())
    writer.batch(make.record(saved(played("the first")), rollout_id="r-1"))
    writer.batch(make.close("r-1"))
    told = rollbook("trace", "r-1")
    assert "the first" in told.out
    writer.batch(make.claim())
    told = rollbook("trace", "r-1")
    assert told.code == 1
    assert told.error_line == "attempt 2 of 'r-1' left no trace; there is one with --attempt 1"
    writer.batch(make.record(saved(played("the second")), rollout_id="r-1", attempt=2))
    writer.batch(make.finish("r-1", attempt=2))
    assert "the second" in rollbook("trace", "r-1").out
    assert loads(rollbook("trace", "r-1", "--attempt", "1", "--json").out).nodes[-1].message["content"] == "the first"


def test_why_there_is_no_trace_is_said(
    rollbook: CommandLine, writer: make.Writing, database_url: str, tmp_path: Path
) -> None:
    run_rollout(writer, "archived", saved(played()))
    writer.clock.forward(60)
    archive(database_url, before_at=writer.clock.now, to=tmp_path / "old.jsonl.gz")
    run_rollout(writer, "workflow")
    damaged = msgspec.structs.replace(saved(played()), data="eJzLSM3JyQcABiwCFQ==")
    run_rollout(writer, "damaged", damaged)
    run_rollout(
        writer, "newer", TraceSaved(attempt=0, version=2, size_bytes=1, data="eJyrVipLLSrOzM9TslIwqgUAJpgEzw==")
    )
    writer.batch(make.admit("misfit"))
    writer.batch(make.claim())
    misfit = "the request does not fit the task:\n  prompt: no"
    writer.batch(make.finish("misfit", status="failure", err_message=misfit, err_category="validation_error"))
    writer.batch(make.admit("it's"))
    writer.batch(make.cancel("it's"))
    writer.batch(make.admit("waits"))
    said = {
        "archived": "the trace of 'archived' is not in the ledger any more but in the archive old.jsonl.gz",
        "workflow": "'workflow' left no trace: only tasks leave one, and workflows do not; `rollbook show workflow`",
        "misfit": (
            "'misfit' left no trace: it ended as failure (the request does not fit the task: prompt: no), "
            "and only a task that began and came to its end leaves one; `rollbook show misfit` has what there is"
        ),
        "it's": "left no trace: it ended as cancelled before an attempt began; `rollbook show 'it'\"'\"'s'` has",
        "damaged": "the trace of 'damaged' cannot be read: this is no trace",
        "newer": "the trace of 'newer' cannot be read: the trace has version 2 and this Rollbook reads version 1",
        "waits": "'waits' is not over yet and has left no trace so far",
        "nobody": "no rollout 'nobody'; list what there is with `rollbook rollouts`",
    }
    for name, line in said.items():
        told = rollbook("trace", name)
        assert (told.code, told.out) == (1, "")
        assert line in told.error_line, name


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"role": "assistant", "content": ""}, "assistant (empty)"),
        ({"role": "user", "content": {"odd": 1}}, 'user {"odd":1}'),
        ({"role": "user", "content": [7, {"text": None}, {"type": "image_url"}]}, "user 7 None [image_url]"),
        ({"role": "assistant", "content": "so", "tool_calls": "none"}, "assistant so"),
        ({"role": "assistant", "tool_calls": [3, {"function": {"name": "f"}}]}, "assistant -> None() -> f()"),
        ({"content": "who?"}, "None who?"),
    ],
    ids=str,
)
def test_messages_of_any_shape_are_told(
    rollbook: CommandLine, writer: make.Writing, message: dict[str, Any], shown: str
) -> None:
    trace = Trace(rollout_id="r-1")
    trace.commit_prompt([message])
    run_rollout(writer, "r-1", saved(trace))
    told = rollbook("trace", "r-1")
    assert told.code == 0
    assert [" ".join(row[1:]) for row in section(told.out, "branch 0")] == [shown]
