"""What a program wrote, kept with the trace: bounded, of every segment, whatever its end, and without any secret."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.program import ProgramHarness
from rollbook.tasks.harnesses.written import KEPT_BYTES, Written
from rollbook.tasks.hooks import reward
from rollbook.tasks.runtimes.base import Completed
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
from rollbook.tasks.task import Task
from rollbook.traces.storage import dumps, loads
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import Stage, played
from tests.support.processes import until


def kept(trace: Trace) -> dict[str, Any]:
    """What is there for the author, after the trace has been stored and read again."""
    found: dict[str, Any] = loads(dumps(trace)).info["program"]
    return found


@pytest.mark.parametrize("code", [0, 3])
async def test_output_of_a_program_is_kept_however_it_ended(stage: Stage, code: int) -> None:
    command = f"echo planned; echo careful >&2; exit {code}"
    trace = await played(stage.rollout(None, ProgramHarness(command)))
    assert kept(trace) == {"exit_code": code, "stdout": "planned", "stderr": "careful"}


async def test_output_of_a_program_that_was_cut_off_is_kept(stage: Stage) -> None:
    """Its deadline does it in this way."""
    harness = ProgramHarness("echo planned; echo careful >&2; touch written; sleep 1000; true")
    rollout = stage.rollout(None, harness)
    assert await rollout.open()
    step = asyncio.create_task(rollout.step())
    await until((stage.runtimes[0].folder / "written").exists, what="what it writes first")
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert kept(await rollout.close()) == {"exit_code": 137, "stdout": "planned", "stderr": "careful"}


async def test_output_is_there_when_the_rollout_is_scored(stage: Stage) -> None:
    class Read(Task[TaskData]):
        @reward
        def said(self, trace: Trace) -> float:
            return float(trace.info["program"]["stdout"] == "done")

    trace = await played(stage.rollout(None, ProgramHarness("echo done"), task=Read()))
    assert trace.rewards == {"said": 1.0}


async def test_only_the_end_of_much_output_is_kept(stage: Stage) -> None:
    command = "head -c 300000 /dev/zero | tr '\\0' x; echo the end; head -c 9000 /dev/zero | tr '\\0' e >&2"
    trace = await played(stage.rollout(None, ProgramHarness(command)))
    assert kept(trace)["stdout"] == "x" * (KEPT_BYTES - len("the end")) + "the end"
    assert kept(trace)["stderr"] == "e" * KEPT_BYTES


async def test_key_and_address_of_the_rollout_are_not_kept(stage: Stage) -> None:
    command = 'env; echo "$OPENAI_BASE_URL $OPENAI_API_KEY" >&2'
    harness = ProgramHarness(command, env={"SEARCH_TOKEN": "tok-5f2a9c71", "STYLE": "plain-and-short"})
    rollout = stage.rollout(None, harness)
    trace = await played(rollout)
    secret = stage.endpoint.sessions[0].secret
    stored = dumps(trace).decode()
    assert secret not in stored
    assert "tok-5f2a9c71" not in stored
    assert "SEARCH_TOKEN=[SEARCH_TOKEN]" in kept(trace)["stdout"]
    assert "STYLE=plain-and-short" in kept(trace)["stdout"]
    assert kept(trace)["stderr"].endswith("/s/[key]/v1 [key]")


async def test_part_of_a_key_that_the_limit_of_the_output_cut_is_not_kept(stage: Stage) -> None:
    runtime = lambda: SubprocessRuntime(parent=stage.folder, output_limit_bytes=60)  # noqa: E731
    harness = ProgramHarness('printf "%s%s" "$OPENAI_API_KEY" "$(head -c 30 /dev/zero | tr "\\0" .)" >&2; exit 1')
    trace = await played(stage.rollout(None, harness, runtime=runtime))
    secret = stage.endpoint.sessions[0].secret
    assert all(secret[-size:] not in trace.errors[0].message for size in range(6, len(secret)))


async def test_key_that_the_limit_of_the_error_would_cut_is_replaced_before(stage: Stage) -> None:
    filler = 1980  # the last 2,000 characters begin inside the key
    harness = ProgramHarness(f'printf "%s%{filler}s" "$OPENAI_API_KEY" x >&2; exit 1')
    trace = await played(stage.rollout(None, harness))
    secret = stage.endpoint.sessions[0].secret
    assert secret[-10:] not in trace.errors[0].message


def test_segments_are_kept_one_behind_the_other_within_the_limit() -> None:
    info: dict[str, Any] = {"program": "the task's own"}
    Written(Completed(0, b"one\n", b"first\n"), secrets={}).keep(info)
    Written(Completed(2, b"two\n"), secrets={}).keep(info)
    assert info == {"program": {"exit_code": 2, "stdout": "one\ntwo", "stderr": "first"}}
    Written(Completed(0, ("é" * KEPT_BYTES).encode()), secrets={}).keep(info)
    assert info["program"]["stdout"] == "é" * (KEPT_BYTES // 2)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"command": ["agent", 3]}, "expected str"),
        ({"command": ["agent"], "env": {"TURNS": 3}}, r"made of texts, got 3"),
    ],
)
def test_command_and_variables_that_are_no_texts_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        ProgramHarness(**given)
