"""The commands of one transaction: carried out in order, with whatever they need to read as they go.

No I/O of its own and no database's words: each command yields its queries and is sent their rows (`Steps`), so every
database drives the same rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any

import msgspec

from rollbook_client.statuses import CancelDisposition
from rollbook_projections import RolloutState, Row

from . import commands as cmd
from . import drains, members
from .archives.stubs import SELECT_ARCHIVED, Archived
from .codec import CodecError
from .decide import Slots, fair_share
from .refusals import Closure, CommandFailed, LedgerError, LedgerUnavailable, RolloutArchived
from .statements import LARGEST_CHOICE, SELECT_LATE, SELECT_SCORINGS, Query, Statements, Steps, storable
from .transaction import Transaction

log = logging.getLogger(__name__)

MAX_CLAIM_LOOKS = 1_000
"""A claim ends overdue rollouts that it meets; more of them than this are left to the sweeps."""


class Committed(msgspec.Struct, frozen=True):
    """What a batch left behind: answers in the commands' order, and what it changed."""

    answers: list[Any]
    first_position: int
    last_position: int
    changed: dict[int, RolloutState]
    wakes: bool = True
    """Whether anything happened that somebody may wait for."""


def named_ids(commands: list[cmd.Command[Any]]) -> list[str]:
    """The rollouts that the commands name; their states must be known to the transaction before it begins."""
    ids: dict[str, None] = {}
    for command in commands:
        rollout_id = getattr(command, "rollout_id", None)
        if rollout_id is not None:
            ids[rollout_id] = None
        elif isinstance(command, cmd.Cancel) and command.ids is not None:
            ids.update(dict.fromkeys(command.ids))
    return [rollout_id for rollout_id in ids if storable(rollout_id)]


def named_keys(commands: list[cmd.Command[Any]]) -> list[str]:
    """The idempotency keys of the commands; what they admitted must be known to the transaction before it begins."""
    keys = {command.idempotency_key: None for command in commands if isinstance(command, cmd.Admit)}
    return [key for key in keys if key is not None]


class Batch:
    """Commands against one transaction, on one database's statements."""

    def __init__(self, transaction: Transaction, statements: Statements) -> None:
        self.transaction = transaction
        self._statements = statements

    def carry_out(self, commands: list[cmd.Command[Any]], *, extend_first: str | None = None) -> Steps[list[Any]]:
        """The commands' answers; a refusal stands among them for its own command alone.

        ``extend_first`` is why all live leases are extended before the commands are judged, if they are.
        """
        if extend_first is not None:
            yield from self._extend_leases(cmd.ExtendLeases(reason=extend_first))
        answers: list[Any] = []
        for command in commands:
            try:
                answer = _RUNNERS[type(command)](self, command)
                if isinstance(answer, Generator):
                    answer = yield from answer
            except CodecError as error:
                answer = CommandFailed(str(error))
            except LedgerError as error:
                answer = error
            answers.append(answer)
        return answers

    def _one(self, command: Any) -> RolloutState | None:
        """Commands about one rollout answer its state."""
        self.transaction.decide(command.rollout_id, command)
        return self.transaction.states.get(command.rollout_id)

    def _rescore(self, command: cmd.Rescore) -> Steps[int]:
        state = self.transaction.states.get(command.rollout_id)
        if state is None:
            return self.transaction.rescore(command, 0)
        archived = yield SELECT_ARCHIVED, (state.number,)
        if archived:
            raise RolloutArchived(command.rollout_id, str(Archived(*archived[0])))
        ((recorded,),) = yield SELECT_SCORINGS, (state.number,)
        # A scoring of this very transaction is not in the database yet.
        mine = [row for row in self.transaction.history["scorings"] if row[0] == state.number]
        return self.transaction.rescore(command, recorded + len(mine))

    def _admit(self, command: cmd.Admit) -> RolloutState | Steps[RolloutState]:
        if self.transaction.draining:
            return self._admit_unless_closed(command)
        return self.transaction.admit(command, None)

    def _admit_unless_closed(self, command: cmd.Admit) -> Steps[RolloutState]:
        closure: Closure | None = yield from drains.closure(command.queue)
        return self.transaction.admit(command, closure)

    def _close_admission(self, command: cmd.CloseAdmission) -> Steps[bool]:
        self.transaction.draining = True
        return drains.close(command, self.transaction.now)

    def _open_admission(self, command: cmd.OpenAdmission) -> Steps[int]:
        return drains.reopen(command, self.transaction.now)

    def _cancel(self, command: cmd.Cancel) -> Steps[dict[str, CancelDisposition]]:
        ids: Iterable[str] = command.ids if command.ids is not None else (yield from self._cancellable(command))
        dispositions = {}
        for rollout_id in dict.fromkeys(ids):
            before = self.transaction.states.get(rollout_id)
            self.transaction.decide(rollout_id, command)
            after = self.transaction.states.get(rollout_id)
            dispositions[rollout_id] = _disposition(before, after)
        return dispositions

    def _cancellable(self, command: cmd.Cancel) -> Steps[list[str]]:
        prefix = command.prefix or ""
        if not storable(prefix):
            return []
        known = yield from self._known(self._statements.cancellable(command.prefix, command.listed_since))
        ids = {state.rollout_id: None for state in known}
        for state in self.transaction.states.values():
            if state.rollout_id.startswith(prefix) and not state.terminal:
                ids[state.rollout_id] = None
        return list(ids)

    def _claim(self, command: cmd.Claim) -> Steps[tuple[RolloutState, ...]]:
        slots = yield from members.slots_of_able(command.scheduler, self._statements.dialect, queues=command.queues)
        limit = command.limit
        if command.free is not None and len(slots) > 1:
            limit = min(limit, (yield from self._share(command, command.free, slots)))
        claimed: list[RolloutState] = []
        last, size, left = 0, limit, MAX_CLAIM_LOOKS
        # What this transaction has claimed or ended already still waits in the database: look further then.
        while len(claimed) < limit and left > 0:
            found = yield from self._known(self._statements.claimable(command.queues, after=last, limit=size))
            for state in found:
                if len(claimed) == limit:
                    break
                self.transaction.decide(state.rollout_id, command)
                now = self.transaction.states[state.rollout_id]
                if now.scheduler == command.scheduler and now.attempt != state.attempt:
                    claimed.append(now)
            if len(found) < size:
                break
            last, left, size = found[-1].number, left - size, LARGEST_CHOICE
        return tuple(claimed)

    def _share(self, command: cmd.Claim, free: int, slots: dict[str, int]) -> Steps[int]:
        counts = self.transaction.counts
        waiting = sum(counts[queue].queued for queue in command.queues if queue in counts)
        # Counted here rather than told by the others: what they have open is exact, whenever they last spoke.
        names = [name for name in slots if name != command.scheduler]
        held: dict[str, int] = dict((yield self._statements.open_attempts(names)))
        others = (Slots(slots[name] - held.get(name, 0), slots[name]) for name in names)
        return fair_share(waiting, Slots(free, max(free, slots[command.scheduler])), others)

    def _known(self, query: Query) -> Steps[list[RolloutState]]:
        rows = yield query
        return self.transaction.know(states(rows))

    def _sweep(self, command: cmd.Command[int], text: str, *parameters: int) -> Steps[int]:
        known = yield from self._known((text, parameters))
        return sum(self.transaction.decide(state.rollout_id, command) for state in known)

    def _expire_leases(self, command: cmd.ExpireLeases) -> Steps[int]:
        limits = (self.transaction.now, self.transaction.api_seen_at, command.limit)
        return self._sweep(command, self._statements.select_expired, *limits)

    def _expire_deadlines(self, command: cmd.ExpireDeadlines) -> Steps[int]:
        return self._sweep(command, SELECT_LATE, self.transaction.now, command.limit)

    def _take_over(self, command: cmd.TakeOver) -> Steps[int]:
        if command.dead_after_us is not None:
            yield from members.bury_dead_schedulers(command.dead_after_us, self.transaction.now, except_for=command.by)
        return (yield from self._sweep(command, self._statements.select_orphaned, command.limit))

    def _extend_leases(self, command: cmd.ExtendLeases) -> Steps[int]:
        return self._sweep(command, self._statements.select_live)

    def _register(self, command: cmd.Register) -> Steps[bool]:
        now = self.transaction.now
        alone = not (yield from members.others_alive(command, now))
        if command.kind == "scheduler":
            yield from members.bury_displaced_schedulers(command, now, self._statements.dialect)
        yield from members.register(command, now)
        if command.kind == "api" and alone:
            yield from self._extend_leases(cmd.ExtendLeases(reason="no API was alive to renew leases"))
        return alone

    def _beat(self, command: cmd.Beat) -> Steps[None]:
        return members.beat(command, self.transaction.now)

    def _leave(self, command: cmd.Leave) -> Steps[None]:
        return members.leave(command, self.transaction.now)


def states(rows: Iterable[Row]) -> list[RolloutState]:
    """Rows of `rollouts` as states."""
    return [RolloutState(*row) for row in rows]


def _disposition(before: RolloutState | None, after: RolloutState | None) -> CancelDisposition:
    if before is None or after is None or before.terminal:
        return CancelDisposition.NOT_FOUND
    if after.cancel_requested_at is None:
        return CancelDisposition.NOT_FOUND  # the lease was over: it ended as a lease failure
    return CancelDisposition.CANCELLED_QUEUED if before.scheduler is None else CancelDisposition.CANCELLED_RUNNING


_RUNNERS: dict[type, Callable[[Batch, Any], Any]] = {
    cmd.Admit: Batch._admit,
    cmd.Poll: Batch._one,
    cmd.Cancel: Batch._cancel,
    cmd.Claim: Batch._claim,
    cmd.EnterPhase: Batch._one,
    cmd.Record: Batch._one,
    cmd.FinishAttempt: Batch._one,
    cmd.CloseAttempt: Batch._one,
    cmd.Rescore: Batch._rescore,
    cmd.ExpireLeases: Batch._expire_leases,
    cmd.ExpireDeadlines: Batch._expire_deadlines,
    cmd.TakeOver: Batch._take_over,
    cmd.ExtendLeases: Batch._extend_leases,
    cmd.Register: Batch._register,
    cmd.Beat: Batch._beat,
    cmd.Leave: Batch._leave,
    cmd.CloseAdmission: Batch._close_admission,
    cmd.OpenAdmission: Batch._open_admission,
}


type Tries = Generator[list[cmd.Command[Any]], Committed | Exception, Committed]
"""Transactions to try: it yields commands, is sent what came of them, and returns the whole's outcome."""


def tries(commands: list[cmd.Command[Any]]) -> Tries:
    """All commands in one transaction; where that fails by one of them, each in a transaction of its own.

    Raises:
        LedgerUnavailable: nothing was written; try again later.
    """
    result = yield commands
    if isinstance(result, Committed):
        return result
    if isinstance(result, LedgerUnavailable):
        raise result
    if len(commands) > 1:
        # One command is bad in a way the rules did not foresee. Alone, each of the others goes through.
        return (yield from _one_by_one(commands))
    name = type(commands[0]).__name__
    log.error("the ledger could not carry out %s", name, exc_info=result)
    failed = CommandFailed(f"{name} failed: {result}")
    failed.__cause__ = result
    return Committed([failed], 0, 0, {})


def _one_by_one(commands: list[cmd.Command[Any]]) -> Tries:
    parts: list[Committed] = []
    for command in commands:
        try:
            parts.append((yield from tries([command])))
        except LedgerUnavailable as error:
            # What was committed before stands, and must be answered so.
            parts.extend([Committed([error], 0, 0, {})] * (len(commands) - len(parts)))
            break
    written = [part for part in parts if part.last_position]
    changed: dict[int, RolloutState] = {}
    for part in written:
        changed.update(part.changed)
    # Others may have written between the parts: only the last one is known to follow what a reader saw before it.
    return Committed(
        [part.answers[0] for part in parts],
        written[-1].first_position if written else 0,
        written[-1].last_position if written else 0,
        changed,
        any(part.wakes for part in written),
    )
