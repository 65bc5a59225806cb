"""The base class of graders."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rollbook.sdk.config import GraderConfig
from rollbook.sdk.context import GraderContext


class Grader(ABC):
    """Turns a sample into a reward. A new instance is made for every rollout."""

    def __init__(self, config: GraderConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> object:
        """Call ``ctx.set_reward(x)``, or set ``ctx.sample.remove_sample``; the return value is ignored.

        Leaving a sample without reward, and not removed, fails the rollout as `validation_error`. Errors are
        categorised as those of `AgentWorkflow.run` are.
        """
