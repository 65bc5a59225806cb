"""One transaction of the ledger in memory: commands in, events, rows and answers out. No I/O of its own.

The writer opens the transaction, hands over what it read, applies the commands in order and writes what came out.
Later commands see the effects of earlier ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from rollbook_client.events import Event, LeaseExtended, LeaseRenewed
from rollbook_projections import HistoryRows, Recorded, RolloutState, Row, add_history, evolve

from . import chain, codec
from .commands import Admit, Command, Rescore
from .decide import Facts, decide
from .refusals import Closure, Refusal

QUIET_EVENTS = frozenset({LeaseRenewed.TYPE, LeaseExtended.TYPE})
"""What wakes nobody: waiters wait for a change of status, schedulers for work and for ends."""


class Head(msgspec.Struct):
    """Where the ledger ends: the last position, the last rollout number and how many events there are."""

    position: int
    number: int
    events: int


class QueueCount(msgspec.Struct):
    """How many rollouts of a queue wait and how many have an open attempt."""

    queued: int = 0
    running: int = 0


class Transaction:
    """The effects of a batch of commands, gathered until they are written at once."""

    def __init__(
        self, head: Head, counts: dict[str, QueueCount], *, now: int, api_seen_at: int, draining: bool = False
    ) -> None:
        self.head = head
        self.counts = counts
        self.now = now
        self.api_seen_at = api_seen_at
        self.draining = draining
        """Whether admission is closed somewhere."""
        self.states: dict[str, RolloutState] = {}
        self._keyed: dict[str, str] = {}
        """Rollout ids by idempotency key."""
        self.changed: dict[int, RolloutState] = {}
        self.event_rows: list[Row] = []
        self.history: HistoryRows = defaultdict(list)
        self.changed_queues: set[str] = set()
        self.sealed: dict[int, bytes] = {}
        self.wakes = False
        """Whether anything happened that somebody may wait for."""
        self.opened: set[int] = set()
        """Rollouts that are over: their sealed secrets go."""

    def know(self, states: Iterable[RolloutState]) -> list[RolloutState]:
        """Take in states as read; where this transaction changed one already, its own version stands."""
        known = []
        for state in states:
            if state.idempotency_key is not None:
                self._keyed[state.idempotency_key] = state.rollout_id
            known.append(self.states.setdefault(state.rollout_id, state))
        return known

    def admit(self, command: Admit, closure: Closure | None) -> RolloutState:
        """Judge an admission and take it in; the rollout's state, also of one that the same request admitted before.

        Raises:
            Refusal: the rules say no; nothing was taken in.
            CodecError: the event has no JSON form; nothing was taken in.
        """
        count = self.counts.get(command.queue)
        keyed = None if command.idempotency_key is None else self._keyed.get(command.idempotency_key)
        facts = Facts(
            queued=count.queued if count else 0,
            api_seen_at=self.api_seen_at,
            closure=closure,
            keyed=None if keyed is None else self.states[keyed],
        )
        if self._judge(command.rollout_id, command, facts):
            state = self.states[command.rollout_id]
            self.sealed[state.number] = command.sealed
        return self.states[command.rollout_id]

    def decide(self, rollout_id: str, command: Command[Any]) -> bool:
        """Judge a command for one rollout and take its events in; whether there were any.

        Raises:
            Refusal: the rules say no; nothing was taken in.
            CodecError: an event has no JSON form; nothing was taken in.
        """
        return self._judge(rollout_id, command, Facts(api_seen_at=self.api_seen_at))

    def rescore(self, command: Rescore, scorings: int) -> int:
        """Judge a scoring of a rollout that was scored so often before, and take it in; its number.

        Raises:
            Refusal: the rules say no; nothing was taken in.
            CodecError: an event has no JSON form; nothing was taken in.
        """
        self._judge(command.rollout_id, command, Facts(api_seen_at=self.api_seen_at, scorings=scorings))
        return scorings + 1

    def _judge(self, rollout_id: str, command: Command[Any], facts: Facts) -> bool:
        state = self.states.get(rollout_id)
        decision = decide(state, facts, command, self.now)
        if isinstance(decision, Refusal):
            raise decision
        if decision:
            self._record(state, decision)
        return bool(decision)

    def _record(self, state: RolloutState | None, events: tuple[Event, ...]) -> None:
        # Everything that can fail happens before anything is taken in.
        payloads = [codec.encode(event) for event in events]
        before = state
        if state is None:
            self.head.number += 1
            number, seq, digest = self.head.number, 0, chain.GENESIS
        else:
            number, seq, digest = state.number, state.seq, state.head
        position = self.head.position
        for event, payload in zip(events, payloads, strict=True):
            position += 1
            seq += 1
            self.wakes = self.wakes or event.TYPE not in QUIET_EVENTS
            digest = chain.link(digest, number, seq, event.TYPE, event.VERSION, self.now, payload)
            record = Recorded(position, number, seq, self.now, digest, event)
            state = evolve(state, record)
            add_history(record, self.history)
            self.event_rows.append(
                (position, number, seq, event.TYPE, event.VERSION, self.now, payload.decode(), digest)
            )
        self.head.position = position
        self.head.events += len(events)
        if state is not None:
            self._settle(before, state)

    def _settle(self, before: RolloutState | None, after: RolloutState) -> None:
        self.states[after.rollout_id] = after
        if before is None and after.idempotency_key is not None:
            self._keyed[after.idempotency_key] = after.rollout_id
        self.changed[after.number] = after
        count = self.counts.setdefault(after.queue, QueueCount())
        queued = after.claimable - (before is not None and before.claimable)
        running = (after.scheduler is not None) - (before is not None and before.scheduler is not None)
        if queued or running:
            count.queued += queued
            count.running += running
            self.changed_queues.add(after.queue)
        if not after.active:
            self.opened.add(after.number)
