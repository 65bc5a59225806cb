"""What attempts record of themselves while it waits for the ledger: in its order, and no more than memory allows."""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec.structs import replace

from rollbook.ledger import commands as cmd
from rollbook_client.events import Event, MetricRecorded, RewardRecorded, StageTimed

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""All records of a scheduler that wait. In an outage its attempts are stopped after some seconds without a beat; what
they would record beyond this until then is lost, and said to be, rather than the process with all their results."""
MAX_COMMAND_BYTES = 4 * 1024 * 1024
MAX_COMMAND_EVENTS = 256
EVENT_BYTES = 512
"""About what an event takes beside its payload."""


class Lane:
    """One attempt's records that wait, and what of it the ledger has."""

    def __init__(self, rollout_id: str, attempt: int, scheduler: str) -> None:
        self.rollout_id = rollout_id
        self.attempt = attempt
        self.scheduler = scheduler
        self.task: asyncio.Task[None] | None = None
        """Records them while there are any."""
        self.superseded = False
        """Whether the ledger takes nothing more of the attempt."""
        self.full = False
        """Whether records were turned away because too much waited."""
        self._waiting: deque[Event] = deque()
        self._rewarded = False
        self._metrics: set[str] = set()
        self._stages: set[str] = set()

    def put(self, event: Event) -> None:
        """Add one at the end."""
        self._waiting.append(event)

    def take(self) -> tuple[Event, ...]:
        """The first ones, as many as go in one command; empty when none is left."""
        taken: list[Event] = []
        size = 0
        while self._waiting and len(taken) < MAX_COMMAND_EVENTS:
            size += weight(self._waiting[0])
            if taken and size > MAX_COMMAND_BYTES:
                break
            taken.append(self._waiting.popleft())
        return tuple(taken)

    def landed(self, events: tuple[Event, ...]) -> None:
        """The ledger has these."""
        for event in events:
            match event:
                case RewardRecorded():
                    self._rewarded = True
                case MetricRecorded(name=name):
                    self._metrics.add(name)
                case StageTimed(spans=spans):
                    self._stages.update(span.stage for span in spans)

    def rest_of(self, report: cmd.FinishAttempt) -> cmd.FinishAttempt:
        """The attempt's end without what was recorded as it came.

        An attempt that recorded rewards has named what its sample's reward is the sum of, so that one is not recorded
        beside them; it stays in the sample. Metrics and stages are known by their names.
        """
        return replace(
            report,
            rewards=() if self._rewarded else report.rewards,
            metrics=tuple(score for score in report.metrics if score.name not in self._metrics),
            spans=tuple(span for span in report.spans if span.stage not in self._stages),
        )


def weight(event: Event) -> int:
    """About how much memory an event takes, in bytes."""
    return EVENT_BYTES + cmd.payload_bytes(event)
