"""Stored traces as the command line reads them: which one there is of a rollout, and what is in it."""

from __future__ import annotations

import base64
import binascii
import shlex

import msgspec

from rollbook.ledger import scored
from rollbook.ledger.reader import Reader
from rollbook.ledger.refusals import UnknownRollout
from rollbook.traces.storage import unpack
from rollbook.traces.trace import Trace
from rollbook_client.statuses import RolloutStatus
from rollbook_projections.state import RolloutState

from .failures import CommandError
from .tables import cut

SHOWN_CHARS = 300
"""How much of a rollout's error is told where it explains that there is no trace."""

_TRACES = "SELECT attempt, max(position) FROM traces WHERE number = ? GROUP BY attempt ORDER BY attempt"
_MESSAGE = "SELECT err_message FROM outcomes WHERE number = ?"
_SCORING = "SELECT scoring, task, asked_by, reward FROM scorings WHERE number = ? ORDER BY scoring DESC LIMIT 1"


class LaterScoring(msgspec.Struct, frozen=True):
    """The scoring that stands before a rollout since it was over."""

    scoring: int
    task: str
    asked_by: str
    reward: float | None


class StoredTrace(msgspec.Struct, frozen=True):
    """A trace and whose it is: of which of the rollout's attempts, and what was scored since."""

    trace: Trace
    attempt: int
    attempts: int
    later: LaterScoring | None


async def trace_at(reader: Reader, position: int) -> Trace | None:
    """The trace that lies there; None where it is not in the ledger any more.

    Raises:
        CodecError: its event is damaged.
        ValueError: the trace is damaged, or of a version that this Rollbook does not read.
        LedgerUnavailable: the ledger cannot be read.
    """
    event = await scored.saved_trace(reader, position)
    if event is None:
        return None
    try:
        return unpack(base64.b64decode(event.data, validate=True))
    except binascii.Error as error:
        raise ValueError(f"its trace is damaged: {error}") from error


async def stored_trace(reader: Reader, rollout_id: str, *, attempt: int | None = None) -> StoredTrace:
    """The trace of a rollout's attempt, the last one if none is named, all of it as it stands at one moment.

    Raises:
        UnknownRollout: no rollout has this id.
        CommandError: the attempt has no trace, or none that can be read; the message says why.
        LedgerUnavailable: the ledger cannot be read.
    """
    async with reader.at_one_moment() as moment:
        return await _stored(moment, rollout_id, attempt)


async def _stored(reader: Reader, rollout_id: str, attempt: int | None) -> StoredTrace:
    state = await reader.state(rollout_id)
    if state is None:
        raise UnknownRollout(rollout_id)
    places = {row[0]: row[1] for row in await reader.query(_TRACES, (state.number,))}
    wanted = state.attempt if attempt is None else attempt
    if wanted not in places:
        others = ", ".join(f"--attempt {number}" for number in places)
        if others:
            raise CommandError(f"attempt {wanted} of {rollout_id!r} left no trace; there is one with {others}")
        if state.active:
            raise CommandError(f"{rollout_id!r} is not over yet and has left no trace so far; wait for its end")
        raise CommandError(
            f"{rollout_id!r} left no trace: {await _why_traceless(reader, state)}; "
            f"`rollbook show {shlex.quote(rollout_id)}` has what there is"
        )
    try:
        trace = await trace_at(reader, places[wanted])
    except ValueError as error:
        raise CommandError(f"the trace of {rollout_id!r} cannot be read: {error}") from error
    if trace is None:
        archived = await reader.archived(state.number)
        raise CommandError(f"the trace of {rollout_id!r} is not in the ledger any more but in the archive {archived}")
    later = await reader.query(_SCORING, (state.number,))
    return StoredTrace(trace, wanted, state.attempt, LaterScoring(*later[0]) if later else None)


async def _why_traceless(reader: Reader, state: RolloutState) -> str:
    """Why a rollout that is over left nothing; the ledger does not tell a task from a workflow that failed."""
    rows = await reader.query(_MESSAGE, (state.number,))
    message = " ".join((rows[0][0] or "").split()) if rows else ""
    ended = f"it ended as {state.status}" + (
        f" ({cut(message, SHOWN_CHARS)})" if message not in ("", state.status) else ""
    )
    if state.attempt == 0:
        return f"{ended} before an attempt began"
    if state.status == RolloutStatus.SUCCESS:
        return "only tasks leave one, and workflows do not"
    return f"{ended}, and only a task that began and came to its end leaves one"
