"""TaskBackend: rollout requests run as tasks, and what is answered and recorded of each."""

from __future__ import annotations

import asyncio

import pytest

from rollbook.backends.base import ExecutionRequest
from rollbook.backends.errors import MachineError
from rollbook.sdk.config import AgentWorkflowConfig
from rollbook.sdk.context import AgentWorkflowContext, RolloutContext, get_rollout_context
from rollbook.sdk.values import MessageDict
from rollbook.sdk.workflow import AgentWorkflow
from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.chat import ChatHarness
from rollbook.tasks.harnesses.workflow import WorkflowHarness
from rollbook.tasks.hooks import reward
from rollbook.tasks.judge import Judge
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook_client.events import (
    ExchangeStopped,
    MetricRecorded,
    ModelCalled,
    RewardRecorded,
    StageTimed,
    TraceSaved,
)
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus
from tests.contract.tasks.playing import NOWHERE, SAID, WAIT_SEC, Acting, Agent, ask_once, ask_times
from tests.contract.tasks.serving import ANSWER, Backend, Sum, Sums, url_of
from tests.support.model_server import Hang, ModelServer, Say, Status


async def test_request_runs_as_a_task_and_is_answered_with_the_final_branch(backend: Backend) -> None:
    async with ModelServer(Say("42")) as model:
        made = backend.make(ChatHarness())
        outcome = await backend.execute(made, url_of(model), label="seven", metadata={"split": "train"})
        assert model.received[0].headers["authorization"] == "Bearer key"
    result = outcome.result
    assert (result.status, result.err_message, result.err_category) == (RolloutStatus.SUCCESS, None, None)
    assert result.sample is not None
    assert result.sample.messages == [*SAID, ANSWER]
    assert result.sample.label == "seven"
    assert result.sample.reward == 1.0
    assert result.sample.metrics == {"turns": 1.0}
    assert backend.told.phases == [RolloutStatus.RUNNING, RolloutStatus.GRADING]


async def test_calls_stages_scores_and_trace_are_recorded_while_it_runs(backend: Backend) -> None:
    seen: list[tuple[int, list[str]]] = []

    async def play(agent: Agent) -> None:
        await agent.ask()
        stages = [span.stage for event in backend.told.of(StageTimed) for span in event.spans]
        seen.append((len(backend.told.of(ModelCalled)), stages))

    async with ModelServer(Say("42", usage={"prompt_tokens": 11, "completion_tokens": 4})) as model:
        await backend.execute(backend.make(Acting(play)), url_of(model))
    assert seen == [(1, ["boot", "setup"])], "told only at the end"
    [call] = backend.told.of(ModelCalled)
    assert (call.call, call.input_tokens, call.output_tokens, call.finish_reason) == (1, 11, 4, "stop")
    assert [(event.name, event.value, event.weight) for event in backend.told.of(RewardRecorded)] == [
        ("never_known", None, 0.0),
        ("right", 1.0, 1.0),
    ]
    assert [(event.name, event.value) for event in backend.told.of(MetricRecorded)] == [("turns", 1.0)]
    assert [span.stage for event in backend.told.of(StageTimed) for span in event.spans] == [
        "boot",
        "setup",
        "agent",
        "finalize",
        "scoring",
    ]
    assert len(backend.told.of(TraceSaved)) == 1


async def test_row_in_the_metadata_becomes_the_tasks_data(backend: Backend) -> None:
    seen: list[Sum] = []

    class Keeps(Sums):
        async def setup(self, data: Sum, runtime: Runtime) -> None:
            seen.append(data)

    row = {"id": "sum-3", "answer": "43", "level": "hard", "prompt": "of the row"}
    async with ModelServer(default=Say("43")) as model:
        made = backend.make(ChatHarness(), task=Keeps())
        with_prompt = await backend.execute(made, url_of(model), metadata={"task": row})
        without = await backend.execute(made, url_of(model), prompt=[], metadata={"task": row})
        assert model.received[1].json["messages"] == [{"role": "user", "content": "of the row"}]
    for outcome in (with_prompt, without):
        assert outcome.result.sample is not None
        assert outcome.result.sample.reward == 1.0
    assert (seen[0].id, seen[0].answer, seen[0].level) == ("sum-3", "43", "hard")
    assert seen[0].messages() == SAID


async def test_request_that_does_not_fit_the_task_is_a_validation_error(backend: Backend) -> None:
    made = backend.make(ChatHarness())
    outcome = await backend.execute(made, NOWHERE, metadata={"task": {"answer": 42}})
    assert outcome.result.status is RolloutStatus.FAILURE
    assert outcome.result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert "does not fit the task" in (outcome.result.err_message or "")
    assert "answer" in (outcome.result.err_message or "")


async def test_request_without_a_prompt_is_the_tasks_error(backend: Backend) -> None:
    outcome = await backend.execute(backend.make(ChatHarness()), NOWHERE, prompt=[])
    assert outcome.result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert "no prompt" in (outcome.result.err_message or "")


async def test_failed_model_is_an_http_error_without_a_sample(backend: Backend) -> None:
    async with ModelServer(default=Status(503)) as model:
        outcome = await backend.execute(backend.make(ChatHarness(tries=1)), url_of(model))
    result = outcome.result
    assert (result.status, result.err_category) == (RolloutStatus.FAILURE, RolloutErrorCategory.HTTP_ERROR)
    assert result.err_message == "agent: a model call failed: HTTP 503: scripted error"
    assert result.sample is None
    assert backend.told.phases == [RolloutStatus.RUNNING]
    assert backend.told.of(RewardRecorded) == []


async def test_failed_scoring_keeps_the_sample_and_has_no_reward(backend: Backend) -> None:
    class Fails(Sums):
        @reward
        def tests(self) -> float:
            raise OSError("no tests ran")

    async with ModelServer(Say("42")) as model:
        outcome = await backend.execute(backend.make(ChatHarness(), task=Fails), url_of(model))
    result = outcome.result
    assert (result.status, result.err_category) == (RolloutStatus.FAILURE, RolloutErrorCategory.AGENT_ERROR)
    assert "no tests ran" in (result.err_message or "")
    assert result.sample is not None
    assert result.sample.messages == [*SAID, ANSWER]
    assert result.sample.reward is None
    assert {event.name: event.value for event in backend.told.of(RewardRecorded)} == {
        "right": 1.0,
        "never_known": None,
        "tests": None,
    }


async def test_stopped_rollout_is_a_success_that_says_so(backend: Backend) -> None:
    async with ModelServer(default=Say("42")) as model:
        made = backend.make(Acting(ask_times(3)), limits=RolloutLimits(max_turns=2))
        outcome = await backend.execute(made, url_of(model))
    result = outcome.result
    assert result.status is RolloutStatus.SUCCESS
    assert result.sample is not None
    assert result.sample.extra_fields == {
        "stop_condition": "max_turns",
        "is_truncated": True,
        "null_rewards": ["never_known"],
    }
    assert backend.told.of(ExchangeStopped) == [ExchangeStopped(attempt=0, condition="max_turns")]


async def test_reward_that_is_whole_names_no_null_rewards(backend: Backend) -> None:
    class Right(Task[TaskData]):
        @reward
        def right(self) -> float:
            return 1.0

    async with ModelServer(Say("42")) as model:
        outcome = await backend.execute(backend.make(ChatHarness(), task=Right), url_of(model))
    assert outcome.result.sample is not None
    assert outcome.result.sample.extra_fields == {"is_truncated": False}


async def test_judge_that_is_away_is_named_beside_the_reward_that_lacks_it(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Judged(Sums):
        judges = (Judge("polite", "m", rubric="Was it polite?", base_url_env="JUDGE_URL", tries=1),)

    made = backend.make(ChatHarness(), task=Judged)
    monkeypatch.delenv("JUDGE_URL", raising=False)
    with pytest.raises(MachineError, match="the judge polite needs JUDGE_URL"):
        await made.check()
    monkeypatch.setenv("JUDGE_URL", "http://127.0.0.1:9/v1")
    await made.check()
    async with ModelServer(Say("42")) as model:
        outcome = await backend.execute(made, url_of(model))
    sample = outcome.result.sample
    assert sample is not None
    assert (sample.reward, sample.extra_fields["null_rewards"]) == (1.0, ["never_known", "polite"])


async def test_ungraded_request_is_not_scored(backend: Backend) -> None:
    async with ModelServer(Say("42")) as model:
        outcome = await backend.execute(backend.make(ChatHarness()), url_of(model), grade=False)
    assert outcome.result.status is RolloutStatus.SUCCESS
    assert outcome.result.sample is not None
    assert outcome.result.sample.reward is None
    assert backend.told.phases == [RolloutStatus.RUNNING]
    assert backend.told.of(RewardRecorded) == []


async def test_cancelled_execution_ends_everything_and_frees_its_slot(backend: Backend) -> None:
    async with ModelServer(Say("first"), Hang()) as model:
        made = backend.make(Acting(ask_times(2)), max_concurrent=1)
        running = asyncio.create_task(backend.execute(made, url_of(model)))
        await model.wait_for(2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(model.received[1].hung_up.wait(), WAIT_SEC)
    assert backend.folders == []
    assert made.health()["concurrency"]["running"] == 0
    assert [call.error_kind for call in backend.told.of(ModelCalled)] == [None, "aborted"]
    assert len(backend.told.of(TraceSaved)) == 1
    assert [span.stage for event in backend.told.of(StageTimed) for span in event.spans] == ["boot", "setup", "agent"]


async def test_execution_that_its_runner_breaks_off_leaves_nothing(backend: Backend) -> None:
    class RunnerError(Exception):
        pass

    def enter(phase: RolloutStatus) -> None:
        if phase is RolloutStatus.GRADING:
            raise RunnerError

    async with ModelServer(Say("42")) as model:
        made = backend.make(ChatHarness())
        with RolloutContext(url_of(model), rollout_id="r-1", on_phase=enter), pytest.raises(RunnerError):
            await made.execute(ExecutionRequest(id="r-1", prompt=list(SAID)))
    assert backend.folders == []
    assert made.health()["concurrency"]["running"] == 0


async def test_rollouts_side_by_side_keep_apart(backend: Backend) -> None:
    class Keeps(Sums):
        async def setup(self, data: Sum, runtime: Runtime) -> None:
            self.mine = data.answer

        @reward
        def own(self, data: Sum) -> float:
            return float(self.mine == data.answer)

    async with ModelServer(default=lambda request: Say(request.json["messages"][0]["content"])) as model:
        made = backend.make(Acting(ask_once), task=Keeps, max_concurrent=None)
        outcomes = await asyncio.gather(
            *(
                backend.execute(
                    made,
                    url_of(model),
                    prompt=[{"role": "user", "content": f"answer {number}"}],
                    metadata={"task": {"answer": f"answer {number}"}},
                )
                for number in range(8)
            )
        )
    assert [outcome.result.sample.reward if outcome.result.sample else None for outcome in outcomes] == [2.0] * 8


async def test_sessions_secrets_are_told_before_the_agent_has_them(backend: Backend) -> None:
    async def play(agent: Agent) -> list[MessageDict]:
        assert {agent.exchange.api_key, agent.exchange.chat_url} <= set(backend.told.secrets)
        return [*SAID, ANSWER]

    outcome = await backend.execute(backend.make(Acting(play)), NOWHERE)
    assert outcome.result.status is RolloutStatus.SUCCESS, outcome.result.err_message


async def test_workflow_runs_as_its_rollout(backend: Backend) -> None:
    seen: list[str] = []

    class Looks(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[MessageDict]:
            ambient = get_rollout_context()
            assert ambient is not None
            seen.append(ambient.rollout_id)
            return [*ctx.prompt, ANSWER]

    metadata = {"task": {"id": "sum-3"}}
    outcome = await backend.execute(backend.make(WorkflowHarness(Looks)), NOWHERE, metadata=metadata)
    assert outcome.result.sample is not None
    assert outcome.result.sample.reward == 1.0
    assert seen == ["r-1"]
