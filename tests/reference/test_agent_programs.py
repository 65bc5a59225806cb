"""Two agent programs as they are published, unmodified: they find the model by `OPENAI_BASE_URL`, and know no more.

mini-swe-agent works at a shell, through litellm with plain answers; llm calls functions, through the openai client with
streamed ones. What they did is in the trace all the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.interception.endpoint import Endpoint
from rollbook.tasks import ProgramHarness, Rollout, RolloutLimits, Runtime, SubprocessRuntime, Task, TaskData, reward
from rollbook.traces.trace import Trace
from rollbook_client.events import Event, ModelCalled
from tests.support.model_server import ModelServer, Reply, Say, Status

# Beside the interpreter: the developers' packages bring them.
PROGRAMS = Path(sys.executable).parent
UPSTREAM_KEY = "sk-of-the-upstream"
PROMPT = "Write 42 to answer.txt."
USAGE = ({"prompt_tokens": 900, "completion_tokens": 40}, {"prompt_tokens": 990, "completion_tokens": 15})
BUSY = Status(429, headers={"Retry-After": "0"})

FUNCTIONS = '''
import pathlib

def save(name: str, text: str) -> str:
    """Write a file."""
    pathlib.Path(name).write_text(text)
    return f"{len(text)} characters"
'''


def mini() -> ProgramHarness:
    """mini-swe-agent, asked to do its work without asking back."""
    options = ["--model=openai/{model}", "--yolo", "--exit-immediately", "--output=run.json", "--task={prompt}"]
    return ProgramHarness(
        [str(PROGRAMS / "mini"), *options],
        env={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",  # nobody has a price for this model
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",  # the client below it tries again by itself
            # Seconds of work that change nothing here: a list of prices from the network, and an error in colours.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "TYPER_STANDARD_TRACEBACK": "1",
        },
    )


def llm() -> ProgramHarness:
    """llm, with a function that writes files."""
    options = ["--model=gpt-4o-mini", "--no-log", f"--functions={FUNCTIONS}", "{prompt}"]
    return ProgramHarness([str(PROGRAMS / "llm"), *options], env={"LLM_USER_PATH": "llm"})


HARNESSES = {"mini-swe-agent": mini, "llm": llm}
STREAMED = {"mini-swe-agent": False, "llm": True}


def work_of(program: str) -> list[Reply]:
    """What the model says to a program so that it does the work."""
    first, second = USAGE
    if program == "llm":
        save = json.dumps({"name": "answer.txt", "text": "42"})
        return [Say("I write it.", [("c1", "save", save)], usage=first), Say("It is written.", usage=second)]
    write, done = "printf 42 > answer.txt; wc -c < answer.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    return [
        Say("I write it.", [("c1", "bash", json.dumps({"command": write}))], usage=first),
        Say("It is written.", [("c2", "bash", json.dumps({"command": done}))], usage=second),
    ]


class Written(Task[TaskData]):
    """Wants a file."""

    @reward
    async def written(self, runtime: Runtime) -> float:
        """Whether it is there."""
        done = await runtime.run("cat answer.txt")
        return float(done.stdout == b"42")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    running = Endpoint()
    await running.start()
    yield running
    await running.close()


class Played:
    """A rollout of one of the programs, with what came of it."""

    def __init__(self, program: str, endpoint: Endpoint) -> None:
        self.program = program
        self.events: list[Event] = []
        self._endpoint = endpoint

    async def play(self, server: ModelServer, limits: RolloutLimits | None = None) -> Trace:
        """Its trace."""
        rollout = Rollout(
            Written(),
            TaskData(id=self.program, prompt=PROMPT),
            HARNESSES[self.program](),
            SubprocessRuntime,
            chat_completions_url=server.url,
            api_key=UPSTREAM_KEY,
            limits=limits,
            endpoint=self._endpoint,
            tell=self.events.append,
        )
        try:
            if await rollout.open():
                await rollout.step()
            return await rollout.close()
        finally:
            await rollout.abort()

    @property
    def calls(self) -> list[ModelCalled]:
        return [event for event in self.events if isinstance(event, ModelCalled)]


@pytest.fixture(params=list(HARNESSES))
def played(request: pytest.FixtureRequest, endpoint: Endpoint) -> Played:
    return Played(request.param, endpoint)


async def test_program_asks_a_busy_model_again_does_its_work_and_the_trace_has_all_of_it(played: Played) -> None:
    async with ModelServer(BUSY, *work_of(played.program)) as server:
        trace = await played.play(server)
    assert (trace.ok, trace.errors, trace.rewards) == (True, [], {"written": 1.0})
    branch = trace.final_branch
    assert branch is not None and len(trace.branches) == 1
    messages = [message for message in branch.messages if message["role"] != "system"]
    assert PROMPT in messages[0]["content"]
    assert [message["role"] for message in messages[:4]] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "c1"
    assert "2" in messages[2]["content"]  # so many characters it wrote
    assert messages[3]["content"] == "It is written."
    # 940 of the 990 tokens of the second prompt are the first turn: 900 read, 40 written.
    assert (trace.num_turns, trace.num_input_tokens, trace.num_output_tokens) == (2, 900 + 50, 40 + 15)
    streamed = STREAMED[played.program]
    busy, *told = [(call.input_tokens, call.output_tokens, call.streamed, call.error_kind) for call in played.calls]
    assert busy[3] == "http"
    assert told == [(900, 40, streamed, None), (990, 15, streamed, None)]
    assert {request.headers["authorization"] for request in server.received} == {f"Bearer {UPSTREAM_KEY}"}


async def test_program_that_is_refused_its_next_turn_is_scored(played: Played) -> None:
    async with ModelServer(*work_of(played.program)) as server:
        trace = await played.play(server, RolloutLimits(max_turns=1))
    assert (trace.ok, trace.stop_condition, trace.rewards) == (True, "max_turns", {"written": 1.0})
    assert (trace.num_turns, len(server.received), trace.is_truncated) == (1, 1, True)


async def test_model_that_refuses_is_named_as_the_cause(endpoint: Endpoint) -> None:
    played = Played("llm", endpoint)
    body: dict[str, Any] = {"error": {"message": "no such model here", "type": "invalid_request_error"}}
    async with ModelServer(default=Status(404, json.dumps(body).encode())) as server:
        trace = await played.play(server)
    assert (trace.ok, trace.rewards) == (False, {})
    assert "no such model here" in trace.errors[0].message
    assert trace.errors[0].category == "http_error"
