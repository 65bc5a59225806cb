"""The contexts: the ambient one of a rollout, and the ones that workflows and graders are called with."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from rollbook.sdk.config import AgentWorkflowConfig
from rollbook.sdk.sample import RolloutSample
from rollbook.sdk.span import Stage, StageSpan
from rollbook.sdk.values import MessageDict
from rollbook_client.events import RECORDABLE, Event
from rollbook_client.statuses import RolloutStatus

CHAT_COMPLETIONS_URL_ENV = "OSMOSIS_CHAT_COMPLETIONS_URL"
API_KEY_ENV = "OSMOSIS_API_KEY"
ROLLOUT_ID_ENV = "OSMOSIS_ROLLOUT_ID"


type _Way = tuple[str, str | None]
"""A URL and a key."""


class SampleSource(ABC):
    """Makes the sample of a rollout whose ``run()`` returns None; an agent integration registers one."""

    @abstractmethod
    async def get_sample(self) -> RolloutSample | None:
        """Return the sample as it stands now, or None if there is none."""


class RolloutContext:
    """What belongs to one rollout, ambient while it runs: the policy endpoint, its key, the id, the sample source.

    Values left out come from the environment. `chat_completions_url` is opaque: append nothing, add no routing
    headers. As a context manager it is what `get_rollout_context` returns inside the block, in the workflow and in
    the grader. `on_phase` is called by the backend as the rollout enters `running` and `grading`, `on_record` with
    what is to be recorded of it, `on_secrets` with a URL and a key that user code gets in place of its own, `on_stage`
    with each stage that begins and with None as it ends. `spans` holds the stage spans of the latest execution, also of
    one that was cancelled.
    """

    def __init__(
        self,
        chat_completions_url: str | None = None,
        api_key: str | None = None,
        *,
        rollout_id: str | None = None,
        on_phase: Callable[[RolloutStatus], None] | None = None,
        on_record: Callable[[tuple[Event, ...]], None] | None = None,
        on_secrets: Callable[[str, str | None], None] | None = None,
        on_stage: Callable[[Stage | None], None] | None = None,
    ) -> None:
        self._way: _Way | Callable[[], _Way] = (
            chat_completions_url or os.environ.get(CHAT_COMPLETIONS_URL_ENV, ""),
            api_key or os.environ.get(API_KEY_ENV),
        )
        self.rollout_id: str = rollout_id or os.environ.get(ROLLOUT_ID_ENV, "")
        self.on_phase = on_phase
        self.on_record = on_record
        self.on_secrets = on_secrets
        self.on_stage = on_stage
        self.sample_source: SampleSource | None = None
        self.spans: list[StageSpan] = []
        self._outer: list[RolloutContext | None] = []

    @property
    def chat_completions_url(self) -> str:
        """Where the policy is; empty if nobody said."""
        return self._reach()[0]

    @chat_completions_url.setter
    def chat_completions_url(self, url: str) -> None:
        self._way = (url, self._reach()[1])

    @property
    def api_key(self) -> str | None:
        """The policy's key; None if there is none."""
        return self._reach()[1]

    @api_key.setter
    def api_key(self, api_key: str | None) -> None:
        self._way = (self._reach()[0], api_key)

    def __enter__(self) -> Self:
        self._outer.append(_ambient.get())
        _ambient.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        # set(), not reset(token): a token is refused when the block ends in another asyncio context than it began in.
        _ambient.set(self._outer.pop())

    def set_sample_source(self, source: SampleSource) -> None:
        """Register the one source of this rollout's sample; raises ``ValueError`` for a second one."""
        if self.sample_source is not None:
            raise ValueError(
                "this rollout already has a sample source: a rollout has one sample, "
                "so make one agent or session per run and admit more rollouts for more samples"
            )
        self.sample_source = source

    async def get_sample(self) -> RolloutSample | None:
        """Return the registered source's sample, or None if no source was registered."""
        return None if self.sample_source is None else await self.sample_source.get_sample()

    def through(self, stand_ins: Callable[[], tuple[str, str | None]]) -> Self:
        """The context of the same rollout for code that is to reach the model by another URL and key; for backends.

        ``stand_ins`` gives them when that code first asks, on whatever thread; perhaps more than once, if several ask.
        They are secrets like the rollout's own, and `on_secrets` is told of them.
        """

        def made() -> _Way:
            way = stand_ins()
            if self.on_secrets is not None:
                self.on_secrets(*way)
            return way

        other = copy.copy(self)
        other._outer = []
        other._way = made
        return other

    def _reach(self) -> _Way:
        way = self._way
        if callable(way):
            way = self._way = way()
        return way

    def enter_phase(self, phase: RolloutStatus) -> None:
        """Tell `on_phase`, if there is one; for backends."""
        if self.on_phase is not None:
            self.on_phase(phase)

    def enter_stage(self, stage: Stage | None) -> None:
        """Tell `on_stage`, if there is one, what the rollout does now; None between two stages. For backends."""
        if self.on_stage is not None:
            self.on_stage(stage)

    def record(self, *events: Event) -> None:
        """Have events of this rollout recorded in the ledger, soon and in this order; nothing waits for it.

        They are events of `rollbook_client.events.RECORDABLE`, made with ``attempt=0``: the ledger knows which attempt
        this is. Without a ledger (no `on_record`) nothing happens. May be called on any thread. Raises ``TypeError``
        for other events: those are the ledger's own.
        """
        for event in events:
            if not isinstance(event, RECORDABLE):
                allowed = ", ".join(kind.__name__ for kind in RECORDABLE)
                raise TypeError(f"{type(event).__name__} cannot be recorded by a rollout; record one of {allowed}")
        if self.on_record is not None:
            self.on_record(events)

    def __repr__(self) -> str:
        return f"RolloutContext(rollout_id={self.rollout_id!r})"  # never the key or the URL: both may be secrets


_ambient: ContextVar[RolloutContext | None] = ContextVar("rollout_context", default=None)


def get_rollout_context() -> RolloutContext | None:
    """The context of the rollout that is running here, or None outside of one."""
    return _ambient.get()


class _HasArtifacts:
    """The folder of a rollout's files, made when it is first asked for: most rollouts never ask."""

    _artifacts: Path | Callable[[], Path] | None

    @property
    def artifacts_dir(self) -> Path | None:
        """This rollout's own folder for files; the same in workflow and grader. None in a context made without one.

        Raises ``OSError`` if the folder cannot be made.
        """
        if callable(self._artifacts):
            self._artifacts = self._artifacts()
        return self._artifacts


class AgentWorkflowContext[TConfig: AgentWorkflowConfig](_HasArtifacts):
    """What ``run(ctx)`` gets: the prompt messages, the run's own copy of the config, the request's metadata."""

    def __init__(
        self,
        prompt: list[MessageDict],
        config: TConfig | None = None,
        *,
        metadata: dict[str, Any] | None = None,
        artifacts_dir: Path | Callable[[], Path] | None = None,
    ) -> None:
        self.prompt = prompt
        self.config = config
        self.metadata = metadata
        self._artifacts = artifacts_dir


class GraderContext(_HasArtifacts):
    """What ``grade(ctx)`` gets: the label, the sample (None if there is none), the request's metadata."""

    def __init__(
        self,
        label: str | None = None,
        sample: RolloutSample | None = None,
        *,
        project_path: str | None = None,
        metadata: dict[str, Any] | None = None,
        artifacts_dir: Path | Callable[[], Path] | None = None,
    ) -> None:
        self.label = label
        self.sample = sample
        self.project_path = project_path
        self.metadata = metadata
        self._artifacts = artifacts_dir

    def set_reward(self, reward: float) -> None:
        """Give the sample its reward; raises ``ValueError`` if there is no sample or the reward is not finite."""
        if self.sample is None:
            raise ValueError(
                "there is no sample to reward: have run() return messages or register a sample source, "
                "or check ctx.sample first"
            )
        self.sample.reward = reward
