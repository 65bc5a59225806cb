"""The ambient RolloutContext, and the contexts of run() and grade()."""

import asyncio
from pathlib import Path

import pytest

from rollbook.sdk.config import AgentWorkflowConfig
from rollbook.sdk.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    SampleSource,
    get_rollout_context,
)
from rollbook.sdk.sample import RolloutSample
from rollbook_client.statuses import RolloutStatus


class FixedSource(SampleSource):
    def __init__(self, sample: RolloutSample) -> None:
        self.sample = sample

    async def get_sample(self) -> RolloutSample:
        return self.sample


def test_context_is_ambient_inside_its_block_only() -> None:
    outer, inner = RolloutContext(rollout_id="outer"), RolloutContext(rollout_id="inner")
    assert get_rollout_context() is None
    with outer:
        with inner:
            assert get_rollout_context() is inner
        assert get_rollout_context() is outer
        with outer:
            assert get_rollout_context() is outer
        assert get_rollout_context() is outer
    assert get_rollout_context() is None


def test_block_may_end_in_another_task_than_it_began_in() -> None:
    context = RolloutContext()

    async def scenario() -> None:
        async def enter() -> None:
            context.__enter__()

        await asyncio.create_task(enter())
        context.__exit__(None, None, None)
        assert get_rollout_context() is None

    asyncio.run(scenario())


def test_values_left_out_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://env/v1")
    monkeypatch.setenv("OSMOSIS_API_KEY", "env-key")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "env-id")
    context = RolloutContext()
    assert (context.chat_completions_url, context.api_key, context.rollout_id) == ("http://env/v1", "env-key", "env-id")
    given = RolloutContext("http://given", "key", rollout_id="id")
    assert (given.chat_completions_url, given.api_key, given.rollout_id) == ("http://given", "key", "id")


def test_values_are_empty_without_environment() -> None:
    context = RolloutContext()
    assert (context.chat_completions_url, context.api_key, context.rollout_id) == ("", None, "")


def test_url_is_kept_as_it_is() -> None:
    url = "http://host/v1/?token=a%20b#x"
    assert RolloutContext(url).chat_completions_url == url


async def test_sample_comes_from_the_registered_source() -> None:
    context = RolloutContext()
    assert await context.get_sample() is None
    sample = RolloutSample()
    context.set_sample_source(FixedSource(sample))
    assert await context.get_sample() is sample


def test_second_source_is_refused() -> None:
    context = RolloutContext()
    context.set_sample_source(FixedSource(RolloutSample()))
    with pytest.raises(ValueError, match="one sample"):
        context.set_sample_source(FixedSource(RolloutSample()))


def test_phases_reach_the_observer() -> None:
    seen: list[RolloutStatus] = []
    context = RolloutContext(on_phase=seen.append)
    context.enter_phase(RolloutStatus.RUNNING)
    RolloutContext().enter_phase(RolloutStatus.RUNNING)
    assert seen == [RolloutStatus.RUNNING]


def test_repr_shows_no_secret() -> None:
    text = repr(RolloutContext("http://host/secret-capability", "secret-key", rollout_id="r"))
    assert "secret" not in text
    assert "'r'" in text


def test_set_reward_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="no sample"):
        GraderContext().set_reward(1.0)


def test_set_reward_rewards_the_sample() -> None:
    context = GraderContext("label", RolloutSample())
    context.set_reward(0.25)
    assert context.sample is not None
    assert context.sample.reward == 0.25


def test_artifacts_folder_is_made_once_at_first_use(tmp_path: Path) -> None:
    made: list[Path] = []

    def make() -> Path:
        made.append(tmp_path)
        return tmp_path

    context: AgentWorkflowContext[AgentWorkflowConfig] = AgentWorkflowContext([], artifacts_dir=make)
    assert made == []
    assert context.artifacts_dir == tmp_path
    assert context.artifacts_dir == tmp_path
    assert made == [tmp_path]


def test_hand_made_context_may_have_no_artifacts_folder(tmp_path: Path) -> None:
    assert GraderContext().artifacts_dir is None
    assert GraderContext(artifacts_dir=tmp_path).artifacts_dir == tmp_path


def test_another_way_to_the_model_is_made_when_it_is_first_asked_for() -> None:
    told: list[tuple[str, str | None]] = []
    context = RolloutContext("http://given", "key", rollout_id="id", on_secrets=lambda *way: told.append(way))
    other = context.through(lambda: ("http://another", None))
    assert told == []
    assert (other.chat_completions_url, other.api_key, other.rollout_id) == ("http://another", None, "id")
    assert told == [("http://another", None)]
    assert (context.chat_completions_url, context.api_key) == ("http://given", "key")


def test_url_and_key_may_be_set() -> None:
    context = RolloutContext("http://given", "key")
    context.chat_completions_url = "http://set"
    context.api_key = None
    assert (context.chat_completions_url, context.api_key) == ("http://set", None)
