"""The demo's trainer: admits every row several times over HTTP and waits for the results, as any trainer would."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from rollbook_client import RolloutClient, RolloutHandle, RolloutResultResponse, RolloutStatus

from .endpoint import ChatEndpoint
from .example import Row

LOOK_SEC = 0.1
AGENT_TIMEOUT_SEC = 60.0
GRADER_TIMEOUT_SEC = 60.0


class Tally(msgspec.Struct, frozen=True):
    """How many rollouts stand where; all that have not ended are polled at this moment."""

    total: int
    queued: int = 0
    running: int = 0
    grading: int = 0

    @property
    def done(self) -> int:
        """How many have ended."""
        return self.total - self.queued - self.running - self.grading


class Graded(msgspec.Struct, frozen=True):
    """A row with the results of its attempts, in their order."""

    row: Row
    results: tuple[RolloutResultResponse, ...]

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Each attempt's reward; None where a rollout failed, which is not a zero."""
        return tuple(None if result.sample is None else result.sample.reward for result in self.results)


def rollout_id(row: int, attempt: int) -> str:
    """The id of a row's attempt; both are counted from 1."""
    return f"row-{row:02}-attempt-{attempt}"


async def run_batch(
    url: str, endpoint: ChatEndpoint, rows: Sequence[Row], *, attempts: int, on_progress: Callable[[Tally], None]
) -> list[Graded]:
    """Run every row ``attempts`` times on the server at ``url``.

    Raises:
        RolloutProtocolError, httpx.TransportError: the server refused or went away for good.
    """
    async with RolloutClient(url=url) as client:
        handles = await asyncio.gather(
            *(
                _admit(client, endpoint, row, rollout_id(number, attempt))
                for number, row in enumerate(rows, start=1)
                for attempt in range(1, attempts + 1)
            )
        )
        results = [asyncio.ensure_future(handle.wait_for_completion()) for handle in handles]
        pending: set[asyncio.Future[RolloutResultResponse]] = set(results)
        while pending:
            on_progress(_tally(handles))
            _, pending = await asyncio.wait(pending, timeout=LOOK_SEC)
        on_progress(_tally(handles))
        found = [result.result() for result in results]
    return [Graded(row, tuple(found[start : start + attempts])) for row, start in _starts(rows, attempts)]


def _starts(rows: Sequence[Row], attempts: int) -> list[tuple[Row, int]]:
    return [(row, index * attempts) for index, row in enumerate(rows)]


async def _admit(client: RolloutClient, endpoint: ChatEndpoint, row: Row, name: str) -> RolloutHandle:
    return await client.run_rollout_async(
        list(row.messages),
        endpoint.base_url(name),
        name,
        llm_api_key=endpoint.api_key,
        label=row.ground_truth,
        agent_timeout_sec=AGENT_TIMEOUT_SEC,
        grader_timeout_sec=GRADER_TIMEOUT_SEC,
    )


def _tally(handles: Sequence[RolloutHandle]) -> Tally:
    counts = Counter(handle.status for handle in handles)
    return Tally(
        total=len(handles),
        queued=counts[RolloutStatus.QUEUED] + counts[RolloutStatus.UNKNOWN],
        running=counts[RolloutStatus.RUNNING],
        grading=counts[RolloutStatus.GRADING],
    )
