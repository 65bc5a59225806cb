"""Ledgers and commands to measure with: one rollout, its whole life, and thousands of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from rollbook.ledger.commands import Admit, Claim, Command, EnterPhase, FinishAttempt, Poll, Register, Score
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.secrets import token_digest
from rollbook_client.events import StageSpan

QUEUE = "bench"
SCHEDULER = "bench-scheduler"
TOKEN = "a-polling-token-of-the-right-length-for-benchmarks"
"""Of every rollout that is admitted here."""
DIGEST = token_digest(TOKEN)
HOUR_US = 3_600_000_000
REQUEST = (
    b'{"initial_messages":[{"role":"user","content":"17 x 23?"}],"label":"391","metadata":null,"grade":true,'
    b'"agent_timeout_sec":null,"grader_timeout_sec":null,"extra_fields":null}'
)
SAMPLE = (
    b'{"messages":[{"role":"user","content":"17 x 23?"},{"role":"assistant","content":"391"}],"label":"391",'
    b'"reward":1.0,"remove_sample":false,"metrics":{},"extra_fields":{}}'
)
SEALED = bytes(180)


def admit(rollout_id: str) -> Admit:
    """Take a rollout in, with a lease of an hour."""
    return Admit(
        rollout_id=rollout_id,
        queue=QUEUE,
        max_queue_depth=None,
        max_attempts=3,
        lease_nonce="00" * 16,
        lease_digest=DIGEST,
        lease_timeout_us=HOUR_US,
        agent_timeout_us=None,
        label="391",
        endpoint_origin="http://127.0.0.1:9",
        endpoint_digest="ab" * 32,
        request=REQUEST,
        sealed=SEALED,
    )


def poll(rollout_id: str) -> Poll:
    """Renew its lease."""
    return Poll(rollout_id, DIGEST)


def register() -> Register:
    """The scheduler that claims here."""
    return Register(
        member_id=SCHEDULER,
        kind="scheduler",
        host="bench",
        pid=1,
        dead_after_us=HOUR_US,
        entrypoint="bench.py",
        queues=(QUEUE,),
        capacity=512,
    )


def claim(limit: int) -> Claim:
    """Start attempts."""
    return Claim(SCHEDULER, (QUEUE,), limit)


def finish(rollout_id: str) -> FinishAttempt:
    """End the first attempt with a reward."""
    return FinishAttempt(
        rollout_id=rollout_id,
        attempt=1,
        scheduler=SCHEDULER,
        status="success",
        phases=("grading",),
        sample=SAMPLE,
        spans=(StageSpan("agent", 1, 2), StageSpan("grading", 2, 3)),
        rewards=(Score("reward", 1.0),),
    )


def life(rollout_ids: list[str]) -> Iterator[list[Command[Any]]]:
    """Batches that lead these rollouts from admission to their end."""
    yield [admit(rollout_id) for rollout_id in rollout_ids]
    yield [poll(rollout_id) for rollout_id in rollout_ids]
    yield [claim(len(rollout_ids))]
    yield [EnterPhase(rollout_id, 1, SCHEDULER, "running") for rollout_id in rollout_ids]
    yield [finish(rollout_id) for rollout_id in rollout_ids]


async def fill(url: str, rollouts: int) -> None:
    """Bring so many rollouts to their end, written as the writer writes them."""
    ledger = await Ledger.open(url)
    try:
        await ledger.submit(register())
        for start in range(0, rollouts, 500):
            ids = [f"{number:032x}" for number in range(start, min(start + 500, rollouts))]
            for batch in life(ids):
                await asyncio.gather(*(ledger.submit(command) for command in batch))
    finally:
        await ledger.close()
