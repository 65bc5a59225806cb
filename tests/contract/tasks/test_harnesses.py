"""The harnesses that come with Rollbook: the loop with tools, any program, an existing workflow."""

from __future__ import annotations

import asyncio
import copy
import json
import shlex
import sys
from typing import Any

import httpx
import pytest

from rollbook.interception.messages import Request
from rollbook.sdk.config import AgentWorkflowConfig
from rollbook.sdk.context import AgentWorkflowContext, SampleSource, get_rollout_context
from rollbook.sdk.output import AgentWorkflowOutput
from rollbook.sdk.sample import RolloutSample
from rollbook.sdk.values import MessageDict
from rollbook.sdk.workflow import AgentWorkflow
from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.harnesses.chat import ChatHarness
from rollbook.tasks.harnesses.program import ProgramHarness
from rollbook.tasks.harnesses.workflow import WorkflowHarness
from rollbook.tasks.hooks import intercept, reward
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.tasks.toolsets import Toolset, tool
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import PROMPT, SAID, Stage, played
from tests.support.model_server import Die, Hang, ModelServer, Raw, Say, Status

MORE: list[MessageDict] = [{"role": "user", "content": "And 7 times 8?"}]

AGENT = """
import json, os, sys, urllib.error, urllib.request
messages = json.load(open(os.environ["ROLLBOOK_MESSAGES"]))
def ask():
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["ROLLBOOK_MODEL"], "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(answer)
    return answer["content"]
"""


def program(script: str, **options: Any) -> ProgramHarness:
    """A Python program that can `ask` the model."""
    return ProgramHarness([sys.executable, "-c", AGENT + script], **options)


# ChatHarness


class Files(Toolset):
    """The runtime's files as tools."""

    @tool
    async def write(self, path: str, text: str, runtime: Runtime) -> str:
        """Write a file."""
        await runtime.write(path, text.encode())
        return f"wrote {len(text)}"

    @tool
    async def fail(self) -> str:
        """Fail."""
        raise OSError("no such disk")


class Writes(Task[TaskData]):
    """Is solved by a file."""

    toolsets = (Files(),)

    @reward
    async def written(self, runtime: Runtime) -> float:
        return float(await runtime.read("answer.txt") == b"42")


async def test_chat_calls_the_tools_that_the_model_names_until_it_names_none(stage: Stage) -> None:
    write = ("c1", "write", json.dumps({"path": "answer.txt", "text": "42"}))
    script = [
        Say(None, tool_calls=[write, ("c2", "fail", "{}")]),
        Say(None, tool_calls=[("c3", "fly", "")]),
        Say("done"),
    ]
    async with ModelServer(*script) as model:
        trace = await played(stage.rollout(model, ChatHarness(params={"temperature": 0.5}), task=Writes()))
        first, second, third = [received.json for received in model.received]
    assert trace.errors == []
    assert [offered["function"]["name"] for offered in first["tools"]] == ["write", "fail"]
    assert first["temperature"] == 0.5
    assert second["messages"][-2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "wrote 2"},
        {"role": "tool", "tool_call_id": "c2", "content": "error: OSError: no such disk"},
    ]
    assert third["messages"][-1]["content"].startswith("error: there is no tool 'fly'")
    assert trace.rewards == {"written": 1.0}
    assert trace.num_turns == 3
    assert len(trace.branches) == 1


async def test_chat_takes_up_a_conversation_again(stage: Stage) -> None:
    async with ModelServer(Say("42"), Say("56")) as model:
        rollout = stage.rollout(model, ChatHarness())
        await rollout.open()
        assert await rollout.step()
        assert await rollout.step(MORE)
        trace = await rollout.close()
        assert model.received[1].json["messages"] == [*SAID, {"role": "assistant", "content": "42"}, *MORE]
    assert len(trace.branches) == 1


async def test_chat_is_stopped_by_a_limit_without_failure(stage: Stage) -> None:
    async with ModelServer(default=Say(None, tool_calls=[("c1", "fail", "{}")])) as model:
        trace = await played(stage.rollout(model, ChatHarness(), task=Writes(), limits=RolloutLimits(max_turns=3)))
        assert len(model.received) == 3
    assert trace.stop_condition == "max_turns"
    assert [error.type for error in trace.errors] == ["FileNotFoundError"], "the reward's: nothing was written"


async def test_chat_tries_again_what_may_pass(stage: Stage) -> None:
    async with ModelServer(Status(429, headers={"Retry-After": "0"}), Status(503), Say("42")) as model:
        trace = await played(stage.rollout(model, ChatHarness(backoff_sec=0)))
    assert trace.ok
    assert [call.error.status if call.error else 200 for call in trace.calls] == [429, 503, 200]


@pytest.mark.parametrize(
    ("field", "value"),
    [("tries", 0), ("tries", 2.0), ("tries", None), ("backoff_sec", -1), ("backoff_sec", float("nan"))],
)
def test_numbers_of_chat_that_cannot_be_meant_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be "):
        ChatHarness(**{field: value})


async def test_chat_gives_up_after_its_tries_and_names_the_model(stage: Stage) -> None:
    async with ModelServer(default=Status(503)) as model:
        trace = await played(stage.rollout(model, ChatHarness(tries=3, backoff_sec=0)))
        assert len(model.received) == 3
    assert [error.type for error in trace.errors] == ["ModelCallError", "HarnessError"]


async def test_chat_does_not_try_again_what_will_not_pass(stage: Stage) -> None:
    async with ModelServer(default=Status(404)) as model:
        trace = await played(stage.rollout(model, ChatHarness()))
        assert len(model.received) == 1
    assert trace.errors[0].message == "a model call failed: HTTP 404: scripted error"


@pytest.mark.parametrize("call", ["fly", {"id": "c2", "function": "fly"}, None])
async def test_chat_calls_no_tool_where_one_of_the_calls_is_none(stage: Stage, call: Any) -> None:
    called: list[str] = []

    async def wait() -> str:
        """Wait."""
        called.append("wait")
        await asyncio.Event().wait()
        return ""

    class Waits(Task[TaskData]):
        toolsets = (Toolset(wait),)

    message = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "wait"}}, call]}
    answer = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    async with ModelServer(Raw([answer.encode()])) as model:
        trace = await played(stage.rollout(model, ChatHarness(), task=Waits()))
    assert [error.type for error in trace.errors] == ["HarnessError"]
    assert "tool call" in trace.errors[0].message
    assert called == []


# ProgramHarness


async def test_program_finds_the_model_and_the_conversation(stage: Stage) -> None:
    script = """
assert os.environ["ROLLBOOK_PROMPT"] == open(os.environ["ROLLBOOK_PROMPT_FILE"]).read() == "What is 6 times 7?"
assert os.environ["OPENAI_API_BASE"] == os.environ["OPENAI_BASE_URL"]
assert "ROLLBOOK_SECRET_KEY" not in os.environ
open("answer.txt", "w").write(ask())
"""

    class Solved(Task[TaskData]):
        @reward
        async def right(self, runtime: Runtime) -> float:
            return float(await runtime.read("answer.txt") == b"42")

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, program(script, model="policy-7"), task=Solved()))
        assert model.received[0].json == {"model": "policy-7", "messages": SAID}
    assert trace.errors == []
    assert trace.rewards == {"right": 1.0}
    assert trace.num_turns == 1


async def test_programs_exit_code_and_the_end_of_its_errors_are_the_error(stage: Stage) -> None:
    script = "ask(); sys.stderr.write('x' * 5000 + ' cannot parse the plan'); sys.exit(3)"
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, program(script)))
    [error] = trace.errors
    assert (error.stage, error.type, error.category) == ("agent", "HarnessError", "agent_error")
    assert error.message.startswith("the program ended with exit code 3: xxx")
    assert error.message.endswith("cannot parse the plan")
    assert len(error.message) < 2100
    assert trace.num_turns == 1, "the trajectory was lost"


async def test_program_that_a_signal_ended_says_so(stage: Stage) -> None:
    trace = await played(stage.rollout(None, ProgramHarness("kill -9 $$")))
    assert trace.errors[0].message == "the program ended with exit code 137 and wrote nothing"


async def test_key_that_a_program_writes_to_its_errors_is_not_kept(stage: Stage) -> None:
    command = 'echo "refused with $OPENAI_API_KEY" >&2; exit 1'
    trace = await played(stage.rollout(None, ProgramHarness(command)))
    assert trace.errors[0].message == "the program ended with exit code 1: refused with [key]"


async def test_program_that_is_not_there_is_named(stage: Stage) -> None:
    trace = await played(stage.rollout(None, ProgramHarness(["no-such-agent", "--task", "{prompt}"])))
    [error] = trace.errors
    assert "no-such-agent" in error.message


@pytest.mark.parametrize("code", [0, 1])
async def test_program_that_swallows_the_models_error_does_not_hide_it(stage: Stage, code: int) -> None:
    script = f"""
try:
    ask()
except Exception as error:
    print("gave up", file=sys.stderr)
    sys.exit({code})
"""
    for reply, kind in ((Status(500), "http"), (Die(), "broken_stream")):
        async with ModelServer(default=reply) as model:
            trace = await played(stage.rollout(model, program(script)))
        assert trace.errors[0].type == "ModelCallError"
        assert trace.calls[0].error is not None
        assert trace.calls[0].error.kind == kind
        assert [error.message for error in trace.errors[1:]] == (
            ["the program ended with exit code 1: gave up"] if code else []
        )


async def test_program_is_ended_where_the_model_hangs_past_the_budget(stage: Stage) -> None:
    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(agent=1.0))
    async with ModelServer(Hang()) as model:
        trace = await played(stage.rollout(model, program("ask()"), data=data))
    assert trace.errors[0].category == "timeout"
    assert "the agent exceeded its budget of 1s" in trace.errors[0].message
    assert stage.left_behind == []


async def test_program_that_a_limit_refuses_is_stopped_whatever_its_exit_code(stage: Stage) -> None:
    async with ModelServer(default=Say("42")) as model:
        limits = RolloutLimits(max_turns=2)
        trace = await played(stage.rollout(model, program("while True: ask()"), limits=limits))
    assert trace.ok
    assert trace.stop_condition == "max_turns"
    assert trace.num_turns == 2


async def test_program_takes_up_a_conversation_by_being_started_again(stage: Stage) -> None:
    async with ModelServer(Say("42"), Say("56")) as model:
        rollout = stage.rollout(model, program("ask()", resumes=True))
        await rollout.open()
        assert await rollout.step()
        assert await rollout.step(MORE)
        trace = await rollout.close()
        assert model.received[1].json["messages"] == [*SAID, {"role": "assistant", "content": "42"}, *MORE]
    assert len(trace.branches) == 1
    assert trace.num_turns == 2


async def test_program_that_cannot_resume_has_one_segment(stage: Stage) -> None:
    async with ModelServer(Say("42"), Say("56")) as model:
        rollout = stage.rollout(model, program("ask()"))
        await rollout.open()
        assert await rollout.step()
        assert await rollout.step(MORE) is False
        assert (await rollout.close()).errors[0].type == "TaskError"


async def test_command_gets_the_prompt_as_it_is_also_where_it_looks_like_a_place_holder(stage: Stage) -> None:
    prompt = "Write {model} and {prompt} and {messages_file}; $HOME `id` 'quoted'"
    command = [
        sys.executable,
        "-c",
        "import sys; open('seen', 'w').write(sys.argv[1] + sys.argv[2])",
        "{prompt}",
        "-{model}",
    ]

    class Seen(Task[TaskData]):
        @reward
        async def same(self, runtime: Runtime) -> float:
            assert (await runtime.read("seen")).decode() == f"{prompt}-policy"
            return 1.0

    trace = await played(
        stage.rollout(None, ProgramHarness(command), task=Seen(), data=TaskData(id="t-1", prompt=prompt))
    )
    assert trace.errors == []


@pytest.mark.parametrize(
    "prompt", ["zero \0 byte", "lone \ud800 surrogate", "long " * 50_000], ids=["nul", "lone", "long"]
)
async def test_prompt_that_no_variable_can_hold_reaches_the_program_by_its_files(stage: Stage, prompt: str) -> None:
    script = "assert len(messages[0]['content']) == len(open(os.environ['ROLLBOOK_PROMPT_FILE']).read()) > 10"
    trace = await played(stage.rollout(None, program(script), data=TaskData(id="t-1", prompt=prompt)))
    assert trace.errors == []


async def test_text_of_a_command_is_for_the_shell_and_env_is_passed_on(stage: Stage) -> None:
    harness = ProgramHarness(
        f"{shlex.quote(sys.executable)} -c \"import os; print(os.environ['FLAVOUR'])\" > flavour; exit 0",
        env={"FLAVOUR": "mint"},
    )

    class Seen(Task[TaskData]):
        @reward
        async def same(self, runtime: Runtime) -> float:
            return float(await runtime.read("flavour") == b"mint\n")

    trace = await played(stage.rollout(None, harness, task=Seen()))
    assert trace.rewards == {"same": 1.0}


def test_empty_command_is_refused() -> None:
    with pytest.raises(ValueError, match="command is empty"):
        ProgramHarness([])


# WorkflowHarness


class Asks(AgentWorkflow[AgentWorkflowConfig]):
    """An ordinary workflow: it asks the policy at the URL of its context."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:
        ambient = get_rollout_context()
        assert ambient is not None
        messages = list(ctx.prompt)
        async with httpx.AsyncClient(trust_env=False) as client:
            for turn in range(2):
                answer = await client.post(
                    ambient.chat_completions_url,
                    json={"model": "m", "messages": messages},
                    headers={"Authorization": f"Bearer {ambient.api_key}"},
                )
                answer.raise_for_status()
                messages.append(answer.json()["choices"][0]["message"])
                messages.append({"role": "user", "content": f"go on, {turn}"})
        assert ctx.metadata == {"level": 3}
        return AgentWorkflowOutput(messages=messages, metrics={"asked": 2.0})


DATA = TaskData(id="t-1", prompt=PROMPT, extra={"metadata": {"level": 3}})


async def test_existing_workflow_gets_a_trace_scores_and_metrics(stage: Stage) -> None:
    class Scored(Task[TaskData]):
        @reward
        def turns(self, trace: Trace) -> float:
            return float(trace.num_turns)

        @intercept
        def please(self, request: Request) -> None:
            request.messages[-1]["content"] += " please"

    async with ModelServer(Say("42"), Say("43")) as model:
        trace = await played(
            stage.rollout(model, WorkflowHarness(Asks), task=Scored(), data=DATA, api_key="the policy's own key")
        )
        assert [received.headers["authorization"] for received in model.received] == ["Bearer the policy's own key"] * 2
        assert [received.path for received in model.received] == ["/v1/chat/completions"] * 2
    assert trace.errors == []
    assert trace.rewards == {"turns": 2.0}
    assert trace.metrics == {"asked": 2.0}
    assert trace.final_branch is not None
    assert [message["content"] for message in trace.final_branch.messages] == [
        f"{PROMPT} please",
        "42",
        "go on, 0 please",
        "43",
    ]
    assert len(trace.branches) == 1, "what it returned counted beside what the model had"


async def test_existing_workflow_has_limits(stage: Stage) -> None:
    async with ModelServer(default=Say("42")) as model:
        trace = await played(stage.rollout(model, WorkflowHarness(Asks), data=DATA, limits=RolloutLimits(max_turns=1)))
    assert trace.ok, "the workflow's own error about the refusal counted"
    assert trace.stop_condition == "max_turns"


@pytest.mark.parametrize(
    ("error", "category"), [(ValueError("bad plan"), "validation_error"), (OSError("no disk"), "agent_error")]
)
async def test_workflows_errors_have_the_categories_they_have_elsewhere(
    stage: Stage, error: Exception, category: str
) -> None:
    class Breaks(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
            raise error

    trace = await played(stage.rollout(None, WorkflowHarness(Breaks)))
    assert [(found.type, found.message, found.category) for found in trace.errors] == [
        (type(error).__name__, str(error), category)
    ]


async def test_workflow_without_model_calls_is_taken_by_its_messages(stage: Stage) -> None:
    class FromMemory(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[MessageDict]:
            return [*ctx.prompt, {"role": "assistant", "content": "42"}]

    class FromSource(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
            prompt = ctx.prompt

            class Source(SampleSource):
                async def get_sample(self) -> RolloutSample:
                    return RolloutSample(messages=[*prompt, {"role": "assistant", "content": "42"}])

            ambient = get_rollout_context()
            assert ambient is not None
            ambient.set_sample_source(Source())

    for workflow in (FromMemory, FromSource):
        trace = await played(stage.rollout(None, WorkflowHarness(workflow)))
        assert trace.ok
        assert trace.final_branch is not None
        assert trace.final_branch.messages == [*SAID, {"role": "assistant", "content": "42"}]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"bytes", "bytes"),
        (complex(1, 2), "(1+2j) (complex)"),
        ([{"type": "text", "number": float("nan")}], [{"type": "text", "number": "NaN"}]),
        ({1: "one"}, {"1": "one"}),
    ],
    ids=["bytes", "complex", "nan", "odd-keys"],
)
async def test_messages_without_json_form_cost_neither_end_nor_reward(
    stage: Stage, content: object, kept: object
) -> None:
    class Odd(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[MessageDict]:
            return [{"role": "assistant", "content": content}]

    class Rewarded(Task[TaskData]):
        @reward
        def one(self) -> float:
            return 1.0

    trace = await played(stage.rollout(None, WorkflowHarness(Odd), task=Rewarded()))
    assert trace.errors == []
    assert trace.rewards == {"one": 1.0}
    assert [node.message["content"] for node in trace.nodes] == [kept]


async def test_messages_that_hold_themselves_are_left_out(stage: Stage) -> None:
    class Odd(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[MessageDict]:
            message: MessageDict = {"role": "assistant"}
            message["content"] = [message]
            return [message]

    trace = await played(stage.rollout(None, WorkflowHarness(Odd)))
    assert trace.ok
    assert trace.nodes == []


async def test_program_may_do_with_its_messages_as_it_likes(stage: Stage) -> None:
    class Scribbles(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
            ctx.prompt[0]["content"] = "scribbled"

    rollout = stage.rollout(None, WorkflowHarness(Scribbles), data=TaskData(id="t-1"), user=True)
    await rollout.open()
    said = copy.deepcopy(SAID)
    await rollout.step(said)
    assert rollout.messages == SAID
    assert said == SAID
    rollout.messages[0]["content"] = "scribbled"
    assert rollout.messages == SAID
    await rollout.close()
