"""LocalBackend: what a workflow and a grader return or leave decides the outcome."""

import logging
from pathlib import Path
from typing import Any

import pytest

from rollbook.backends.base import ExecutionOutcome, ExecutionRequest
from rollbook.backends.local import LocalBackend
from rollbook.sdk.config import AgentWorkflowConfig, ConcurrencyConfig
from rollbook.sdk.context import GraderContext, RolloutContext, SampleSource, get_rollout_context
from rollbook.sdk.output import AgentWorkflowOutput
from rollbook.sdk.sample import RolloutSample
from rollbook.sdk.workflow import AgentWorkflow
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus
from tests.unit.backends.support import REPLY, Context, make_backend, make_request, replying


class FixedSource(SampleSource):
    def __init__(self, sample: Any) -> None:
        self.sample = sample

    async def get_sample(self) -> Any:
        return self.sample


def register(sample: Any) -> None:
    context = get_rollout_context()
    assert context is not None
    context.set_sample_source(FixedSource(sample))


def assert_validation_error(outcome: ExecutionOutcome, text: str) -> None:
    result = outcome.result
    assert result.status is RolloutStatus.FAILURE
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert text in (result.err_message or "")


async def test_returned_list_is_the_sample_with_the_requests_label() -> None:
    result = (await make_backend().execute(make_request())).result
    assert result.status is RolloutStatus.SUCCESS
    assert (result.err_message, result.err_category) == (None, None)
    assert result.sample is not None
    assert result.sample.messages == [{"role": "user", "content": "6 * 7"}, REPLY]
    assert (result.sample.label, result.sample.reward) == ("42", 1.0)


async def test_returned_output_brings_its_metrics() -> None:
    async def run(ctx: Context) -> Any:
        return AgentWorkflowOutput(messages=[REPLY], metrics={"turns": 2})

    sample = (await make_backend(run).execute(make_request())).result.sample
    assert sample is not None
    assert (sample.messages, sample.metrics, sample.label) == ([REPLY], {"turns": 2.0}, "42")


async def test_none_falls_back_to_the_registered_source_whose_sample_keeps_its_label() -> None:
    async def run(ctx: Context) -> Any:
        register(RolloutSample(messages=[REPLY]))

    result = (await make_backend(run).execute(make_request())).result
    assert result.status is RolloutStatus.SUCCESS
    assert result.sample is not None
    assert (result.sample.messages, result.sample.label) == ([REPLY], None)


async def test_output_without_messages_does_not_fall_back() -> None:
    async def run(ctx: Context) -> Any:
        register(RolloutSample(messages=[REPLY]))
        return AgentWorkflowOutput(messages=None)

    result = (await make_backend(run).execute(make_request(grade=False))).result
    assert (result.status, result.sample) == (RolloutStatus.SUCCESS, None)


async def test_second_source_fails_the_rollout() -> None:
    async def run(ctx: Context) -> Any:
        register(RolloutSample())
        register(RolloutSample())

    assert_validation_error(await make_backend(run).execute(make_request()), "one sample")


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (42, "run() returned 42 (int)"),
        ([1], "messages[0]"),
        (({"role": "user"},), "tuple"),
    ],
)
async def test_other_return_values_are_validation_errors(returned: Any, text: str) -> None:
    async def run(ctx: Context) -> Any:
        return returned

    assert_validation_error(await make_backend(run).execute(make_request()), text)


async def test_nan_metric_and_unknown_output_field_are_validation_errors() -> None:
    async def nan(ctx: Context) -> Any:
        return AgentWorkflowOutput(messages=[], metrics={"loss": float("nan")})

    async def unknown(ctx: Context) -> Any:
        return AgentWorkflowOutput(messages=[], score=1)  # type: ignore[call-arg]

    assert_validation_error(await make_backend(nan).execute(make_request()), "loss")
    assert_validation_error(await make_backend(unknown).execute(make_request()), "score")


async def test_run_that_is_no_coroutine_is_told_to_be_async() -> None:
    class Sync(AgentWorkflow[AgentWorkflowConfig]):
        def run(self, ctx: Context) -> Any:
            return []

    assert_validation_error(await LocalBackend(workflow=Sync).execute(make_request()), "async def")


async def test_error_while_the_workflow_is_constructed_is_the_workflows_failure() -> None:
    class Broken(AgentWorkflow[AgentWorkflowConfig]):
        def __init__(self, config: AgentWorkflowConfig | None = None) -> None:
            raise RuntimeError("no model")

        async def run(self, ctx: Context) -> Any:
            return []

    result = (await LocalBackend(workflow=Broken).execute(make_request())).result
    assert (result.status, result.err_message) == (RolloutStatus.FAILURE, "no model")
    assert result.err_category is RolloutErrorCategory.AGENT_ERROR


async def test_failed_workflow_has_no_sample_and_is_not_graded() -> None:
    graded: list[GraderContext] = []

    async def run(ctx: Context) -> Any:
        raise ValueError("chosen failure")

    async def grade(ctx: GraderContext) -> Any:
        graded.append(ctx)

    outcome = await make_backend(run, grade).execute(make_request())
    assert outcome.grader is None
    assert outcome.result.sample is None
    assert outcome.result.err_message == "chosen failure"
    assert graded == []


async def test_grade_false_skips_the_grader_and_leaves_the_reward_unset() -> None:
    outcome = await make_backend().execute(make_request(grade=False))
    assert outcome.grader is None
    assert outcome.result.status is RolloutStatus.SUCCESS
    assert outcome.result.sample is not None
    assert outcome.result.sample.reward is None


async def test_grade_false_without_sample_is_a_success_without_sample() -> None:
    async def run(ctx: Context) -> Any:
        return None

    result = (await make_backend(run).execute(make_request(grade=False))).result
    assert (result.status, result.sample, result.err_message) == (RolloutStatus.SUCCESS, None, None)


async def test_backend_without_grader_fails_a_rollout_to_be_graded_and_says_why() -> None:
    result = (await make_backend(replying, None).execute(make_request())).result
    assert (result.status, result.sample, result.err_category) == (RolloutStatus.FAILURE, None, None)
    assert "no grader" in (result.err_message or "")


async def test_neither_label_nor_metadata_fails_and_says_why() -> None:
    result = (await make_backend().execute(make_request(label=None))).result
    assert (result.status, result.sample, result.err_category) == (RolloutStatus.FAILURE, None, None)
    assert "neither label nor metadata" in (result.err_message or "")


@pytest.mark.parametrize("fields", [{"label": ""}, {"label": None, "metadata": {}}])
async def test_empty_label_and_empty_metadata_count_as_given(fields: dict[str, Any]) -> None:
    result = (await make_backend().execute(make_request(**fields))).result
    assert result.status is RolloutStatus.SUCCESS


async def test_grader_gets_label_sample_and_metadata() -> None:
    seen: list[Any] = []

    async def grade(ctx: GraderContext) -> Any:
        seen.extend([ctx.label, ctx.sample and ctx.sample.messages[-1], ctx.metadata, ctx.project_path])
        ctx.set_reward(0)

    await make_backend(replying, grade).execute(make_request(metadata={"a": 1}))
    assert seen == ["42", REPLY, {"a": 1}, None]


async def test_failed_graders_sample_stays_and_its_message_is_the_users() -> None:
    async def grade(ctx: GraderContext) -> Any:
        ctx.set_reward(1.0)
        raise RuntimeError("chosen failure")

    result = (await make_backend(replying, grade).execute(make_request())).result
    assert (result.status, result.err_message) == (RolloutStatus.FAILURE, "chosen failure")
    assert result.err_category is RolloutErrorCategory.AGENT_ERROR
    assert result.sample is not None
    assert result.sample.messages[-1] == REPLY


async def test_grader_that_leaves_no_reward_is_a_validation_error() -> None:
    async def grade(ctx: GraderContext) -> Any:
        return 1.0

    assert_validation_error(await make_backend(replying, grade).execute(make_request()), "set_reward")


async def test_removed_sample_needs_no_reward() -> None:
    async def grade(ctx: GraderContext) -> Any:
        assert ctx.sample is not None
        ctx.sample.remove_sample = True

    result = (await make_backend(replying, grade).execute(make_request())).result
    assert result.status is RolloutStatus.SUCCESS
    assert result.sample is not None
    assert result.sample.remove_sample


async def test_grading_without_a_sample_is_a_validation_error() -> None:
    async def run(ctx: Context) -> Any:
        return None

    async def indifferent(ctx: GraderContext) -> Any:
        assert ctx.sample is None

    assert_validation_error(await make_backend(run).execute(make_request()), "no sample to reward")
    assert_validation_error(await make_backend(run, indifferent).execute(make_request()), "no sample to grade")


async def test_nan_reward_is_a_validation_error_that_keeps_the_sample() -> None:
    async def grade(ctx: GraderContext) -> Any:
        ctx.set_reward(float("nan"))

    outcome = await make_backend(replying, grade).execute(make_request())
    assert_validation_error(outcome, "reward must be a finite number")
    assert outcome.result.sample is not None


async def test_grader_may_put_another_sample_in_place() -> None:
    async def replace(ctx: GraderContext) -> Any:
        ctx.sample = RolloutSample(messages=[], reward=7)

    async def spoil(ctx: GraderContext) -> Any:
        ctx.sample = "text"  # type: ignore[assignment]  # what is tested

    result = (await make_backend(replying, replace).execute(make_request())).result
    assert result.sample is not None
    assert (result.sample.messages, result.sample.reward) == ([], 7.0)
    assert_validation_error(await make_backend(replying, spoil).execute(make_request()), "RolloutSample")


async def test_context_is_ambient_in_workflow_and_grader() -> None:
    seen: list[RolloutContext | None] = []

    async def run(ctx: Context) -> Any:
        seen.append(get_rollout_context())
        return [REPLY]

    async def grade(ctx: GraderContext) -> Any:
        seen.append(get_rollout_context())
        ctx.set_reward(1)

    ambient = RolloutContext("http://policy", "key", rollout_id="r")
    with ambient:
        await make_backend(run, grade).execute(make_request())
        assert get_rollout_context() is ambient
    assert seen == [ambient, ambient]


async def test_backend_makes_a_context_where_there_is_none() -> None:
    seen: list[str] = []

    async def run(ctx: Context) -> Any:
        context = get_rollout_context()
        assert context is not None
        seen.append(context.rollout_id)
        return [REPLY]

    await make_backend(run).execute(make_request("some-id"))
    assert seen == ["some-id"]
    assert get_rollout_context() is None


async def test_every_run_gets_its_own_copy_of_the_config() -> None:
    seen: list[AgentWorkflowConfig | None] = []

    class Remembering(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: Context) -> Any:
            assert ctx.config is self.config
            assert ctx.config is not None
            ctx.config.name += "!"
            seen.append(ctx.config)
            return [REPLY]

    config = AgentWorkflowConfig(name="x")
    backend = LocalBackend(workflow=Remembering, workflow_config=config)
    await backend.execute(make_request(grade=False))
    await backend.execute(make_request(grade=False))
    assert [item and item.name for item in seen] == ["x!", "x!"]
    assert config.name == "x"


async def test_artifacts_folder_is_one_for_workflow_and_grader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_ARTIFACTS_DIR", str(tmp_path / "artifacts"))

    async def run(ctx: Context) -> Any:
        assert ctx.artifacts_dir is not None
        (ctx.artifacts_dir / "log.txt").write_text("from the workflow")
        return [REPLY]

    async def grade(ctx: GraderContext) -> Any:
        assert ctx.artifacts_dir is not None
        ctx.set_reward(float((ctx.artifacts_dir / "log.txt").read_text() == "from the workflow"))

    backend = make_backend(run, grade)
    assert not (tmp_path / "artifacts").exists()
    result = (await backend.execute(make_request("a b?"))).result
    assert result.sample is not None
    assert result.sample.reward == 1.0
    assert (tmp_path / "artifacts" / "a%20b%3F" / "log.txt").is_file()


async def test_rollout_that_asks_for_no_artifacts_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    await make_backend().execute(make_request())
    assert not (tmp_path / "artifacts").exists()


async def test_secrets_are_kept_out_of_messages_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    async def run(ctx: Context) -> Any:
        context = get_rollout_context()
        assert context is not None
        raise RuntimeError(f"401 for {context.api_key} at {context.chat_completions_url}/chat/completions")

    with caplog.at_level(logging.INFO), RolloutContext("http://host/cap-1234567890/v1", "sk-abcdefghijkl"):
        result = (await make_backend(run).execute(make_request())).result
    assert result.err_message == "401 for [llm_api_key] at [chat_completions_url]/chat/completions"
    assert "sk-abcdefghijkl" not in caplog.text
    assert "cap-1234567890" not in caplog.text
    assert "Traceback" in caplog.text


def test_concurrency_comes_from_the_config() -> None:
    def limit(config: AgentWorkflowConfig | None) -> int | None:
        return LocalBackend(workflow=Named, workflow_config=config).max_concurrent

    assert limit(None) == 4
    assert limit(AgentWorkflowConfig(name="x")) is None
    assert limit(AgentWorkflowConfig(name="x", concurrency=ConcurrencyConfig(max_concurrent=9))) == 9


class Named(AgentWorkflow[AgentWorkflowConfig]):
    """Reachable by its module's name."""

    async def run(self, ctx: Context) -> Any:
        return [REPLY]


named_config = AgentWorkflowConfig(name="named", concurrency=ConcurrencyConfig(max_concurrent=2))


async def test_all_parts_come_as_strings_too() -> None:
    backend = LocalBackend(workflow=f"{__name__}:Named", workflow_config=f"{__name__}:named_config")
    assert backend.workflow_cls is Named
    assert backend.max_concurrent == 2
    assert (await backend.execute(make_request(grade=False))).result.status is RolloutStatus.SUCCESS


@pytest.mark.parametrize(
    ("reference", "error", "text"),
    [
        ("nowhere", ValueError, "package.module:Name"),
        ("json:Missing", ImportError, "json has no 'Missing'"),
        ("no_such_module_at_all:X", ImportError, "no_such_module_at_all"),
        ("json:loads", TypeError, "subclass of AgentWorkflow"),
        (AgentWorkflow, TypeError, "abstract; implement run"),
    ],
)
def test_wrong_workflow_is_refused_at_construction(reference: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        LocalBackend(workflow=reference)


def test_wrong_config_is_refused_at_construction() -> None:
    with pytest.raises(TypeError, match="workflow_config"):
        LocalBackend(workflow=Named, workflow_config={"name": "x"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields", [{"id": "a/b"}, {"id": ".."}, {"agent_timeout_sec": float("nan")}, {"grader_timeout_sec": float("inf")}]
)
def test_bad_request_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"path segment|contains a slash|finite"):
        ExecutionRequest(**{"id": "r", "prompt": [], **fields})


async def test_health_shows_the_limit_and_the_base_has_capacity() -> None:
    backend = make_backend(max_concurrent=3)
    assert backend.health() == {"status": "ok", "concurrency": {"max_concurrent": 3, "queued": 0, "running": 0}}
    assert backend.has_capacity()
    await backend.shutdown()
