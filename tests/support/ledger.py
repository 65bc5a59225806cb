"""Factories for the ledger's tests: commands with sensible values, histories of events, and stores without a loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rollbook.ledger import chain, codec
from rollbook.ledger import commands as cmd
from rollbook.ledger.secrets import token_digest
from rollbook.ledger.sqlite.engines import database_path
from rollbook.ledger.urls import SQLITE, parse_url
from rollbook_client.events import Event, ModelCalled, RolloutAdmitted, StageSpan
from rollbook_projections import Recorded, RolloutState, evolve
from tests.support.sql import plain as plain
from tests.support.sql import rows as rows
from tests.support.stores import open_store

QUEUE = "default"
TOKEN = "the-polling-token-of-a-test-0123456789"
DIGEST = token_digest(TOKEN)
SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
LEASE_US = 120 * SECOND_US
DEAD_AFTER_US = 15 * SECOND_US
REQUEST = b'{"initial_messages":[{"role":"user","content":"2 x 3?"}],"label":"6","metadata":{"row":1},"grade":true}'
SAMPLE = b'{"messages":[],"label":"6","reward":1.0,"remove_sample":false,"metrics":{},"extra_fields":{}}'


def admit(
    rollout_id: str = "r-1",
    *,
    queue: str = QUEUE,
    max_queue_depth: int | None = None,
    max_attempts: int = 3,
    lease_timeout_us: int = LEASE_US,
    agent_timeout_us: int | None = None,
    label: str | None = "6",
    request: bytes = REQUEST,
    sealed: bytes = b"sealed",
) -> cmd.Admit:
    return cmd.Admit(
        rollout_id=rollout_id,
        queue=queue,
        max_queue_depth=max_queue_depth,
        max_attempts=max_attempts,
        lease_nonce="00" * 16,
        lease_digest=DIGEST,
        lease_timeout_us=lease_timeout_us,
        agent_timeout_us=agent_timeout_us,
        label=label,
        endpoint_origin="https://chat.example",
        endpoint_digest="ab" * 32,
        request=request,
        sealed=sealed,
    )


def poll(rollout_id: str = "r-1", *, digest: bytes = DIGEST) -> cmd.Poll:
    return cmd.Poll(rollout_id=rollout_id, lease_digest=digest)


def cancel(*ids: str, requested_by: str = "api") -> cmd.Cancel:
    return cmd.Cancel(requested_by=requested_by, ids=ids)


def claim(scheduler: str = "s-1", *, limit: int = 100, queues: tuple[str, ...] = (QUEUE,)) -> cmd.Claim:
    return cmd.Claim(scheduler=scheduler, queues=queues, limit=limit)


def enter(
    rollout_id: str = "r-1", *, attempt: int = 1, scheduler: str = "s-1", phase: Any = "running"
) -> cmd.EnterPhase:
    return cmd.EnterPhase(rollout_id=rollout_id, attempt=attempt, scheduler=scheduler, phase=phase)


CALLED = ModelCalled(
    attempt=0,
    call=1,
    model="m",
    started_at=START_US,
    ended_at=START_US + SECOND_US,
    input_tokens=14,
    output_tokens=16,
    finish_reason="stop",
)


def record(*events: Event, rollout_id: str = "r-1", attempt: int = 1, scheduler: str = "s-1") -> cmd.Record:
    return cmd.Record(rollout_id=rollout_id, attempt=attempt, scheduler=scheduler, events=events or (CALLED,))


def rescore(
    rollout_id: str = "r-1",
    *,
    task: str = "tasks:Sums",
    by: str = "cli:alice",
    scores: tuple[cmd.Score, ...] = (cmd.Score("exact", 0.5), cmd.Score("length", 3.0)),
    weights: dict[str, float] | None = None,
    reward: float | None = 0.5,
) -> cmd.Rescore:
    """Scores that have a weight are rewards."""
    weights = {"exact": 1.0} if weights is None else weights
    later = tuple(cmd.LaterScore(score.name, score.value, weights.get(score.name)) for score in scores)
    return cmd.Rescore(rollout_id, task, by, later, reward)


def finish(
    rollout_id: str = "r-1",
    *,
    attempt: int = 1,
    scheduler: str = "s-1",
    status: Any = "success",
    sample: bytes | None = SAMPLE,
    err_message: str | None = None,
    err_category: str | None = None,
    spans: tuple[StageSpan, ...] = (),
    rewards: tuple[cmd.Score, ...] = (cmd.Score("reward", 1.0),),
    metrics: tuple[cmd.Score, ...] = (),
) -> cmd.FinishAttempt:
    return cmd.FinishAttempt(
        rollout_id=rollout_id,
        attempt=attempt,
        scheduler=scheduler,
        status=status,
        sample=sample,
        err_message=err_message,
        err_category=err_category,
        spans=spans,
        rewards=rewards,
        metrics=metrics,
    )


def close(
    rollout_id: str = "r-1",
    *,
    attempt: int = 1,
    scheduler: str = "s-1",
    outcome: Any = "lost",
    reason: str = "its runner died",
) -> cmd.CloseAttempt:
    return cmd.CloseAttempt(rollout_id=rollout_id, attempt=attempt, scheduler=scheduler, outcome=outcome, reason=reason)


def scheduler(
    member_id: str = "s-1",
    *,
    queues: tuple[str, ...] = (QUEUE,),
    entrypoint: str = "flow.py",
    known_dead: tuple[str, ...] = (),
) -> cmd.Register:
    return cmd.Register(
        member_id=member_id,
        kind="scheduler",
        host="host",
        pid=1,
        dead_after_us=DEAD_AFTER_US,
        entrypoint=entrypoint,
        queues=queues,
        capacity=8,
        known_dead=known_dead,
    )


def api(member_id: str = "a-1", *, known_dead: tuple[str, ...] = ()) -> cmd.Register:
    return cmd.Register(
        member_id=member_id, kind="api", host="host", pid=2, dead_after_us=DEAD_AFTER_US, known_dead=known_dead
    )


def admitted(rollout_id: str = "r-1", *, at: int = START_US, **changes: Any) -> RolloutAdmitted:
    """The event of `admit()`, for histories made by hand."""
    event = RolloutAdmitted(
        rollout_id=rollout_id,
        queue=QUEUE,
        max_attempts=3,
        lease_nonce="00" * 16,
        lease_digest=DIGEST.hex(),
        lease_timeout_us=LEASE_US,
        lease_expires_at=at + LEASE_US,
        agent_timeout_us=None,
        label="6",
        endpoint_origin="https://chat.example",
        endpoint_digest="ab" * 32,
        request=msgspec.Raw(REQUEST),
    )
    return msgspec.structs.replace(event, **changes)


class History:
    """One rollout's events as the ledger would record them, folded as they come."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.state: RolloutState | None = None
        self.records: list[Recorded] = []

    def add(self, *events: Event, at: int = START_US) -> RolloutState:
        for event in events:
            seq = len(self.records) + 1
            before = self.records[-1].digest if self.records else chain.GENESIS
            payload = codec.encode(event)
            digest = chain.link(before, self.number, seq, event.TYPE, event.VERSION, at, payload)
            record = Recorded(seq, self.number, seq, at, digest, event)
            self.state = evolve(self.state, record)
            self.records.append(record)
        assert self.state is not None
        return self.state

    @property
    def events(self) -> list[Event]:
        return [record.event for record in self.records]


class Clock:
    """A clock that tests move."""

    def __init__(self, now: int = START_US) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += int(seconds * SECOND_US)


class Writing:
    """A store used directly, one batch at a time, by the test's own thread."""

    def __init__(self, database_url: str, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.store = open_store(parse_url(database_url), self.clock)

    def batch(self, *commands: cmd.Command[Any]) -> list[Any]:
        """The answers, refusals among them as they are."""
        return self.store.run(list(commands)).answers

    def do[Answer](self, command: cmd.Command[Answer]) -> Answer:
        """One command's answer; its refusal is raised."""
        answer = self.batch(command)[0]
        if isinstance(answer, Exception):
            raise answer
        result: Answer = answer
        return result


@contextmanager
def writing(database_url: str, clock: Clock | None = None) -> Iterator[Writing]:
    """A migrated ledger's store, closed at the end."""
    writer = Writing(database_url, clock)
    try:
        yield writer
    finally:
        writer.store.close()


def ledger_path(database_url: str) -> Path:
    """The file of a ledger on SQLite."""
    url = parse_url(database_url)
    assert url.get_backend_name() == SQLITE
    return database_path(url)


def event_types(database_url: str, rollout_id: str) -> list[str]:
    """A rollout's event types in their order."""
    text = "SELECT e.type FROM events e JOIN rollouts r ON r.number = e.number WHERE r.rollout_id = ? ORDER BY e.seq"
    return [row[0] for row in rows(database_url, text, (rollout_id,))]
