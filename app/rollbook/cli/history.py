"""Everything the ledger knows of one rollout, read in one transaction: what `rollbook show` shows."""

from __future__ import annotations

from typing import Any

import msgspec

from rollbook.ledger import codec
from rollbook.ledger.archives.stubs import Archived
from rollbook.ledger.listing import RolloutView, rollout_view
from rollbook.ledger.reader import Reader
from rollbook.ledger.refusals import UnknownRollout
from rollbook_client.events import RolloutAdmitted, RolloutFinished
from rollbook_projections import RolloutState


class Attempt(msgspec.Struct, frozen=True):
    """One attempt; ``ended_at`` and ``outcome`` are null while it is open."""

    attempt: int
    scheduler: str
    started_at: int
    ended_at: int | None
    outcome: str | None
    reason: str | None


class Phase(msgspec.Struct, frozen=True):
    """When an attempt's workflow or grader started."""

    attempt: int
    phase: str
    at: int


class Span(msgspec.Struct, frozen=True):
    """How long a stage of an attempt took."""

    attempt: int
    stage: str
    started_at: int
    ended_at: int


class Call(msgspec.Struct, frozen=True):
    """A model call of an attempt; ``error_kind`` and ``error`` say why it brought no answer."""

    attempt: int
    call: int
    purpose: str
    model: str | None
    started_at: int
    first_chunk_at: int | None
    ended_at: int
    input_tokens: int | None
    output_tokens: int | None
    cached_input_tokens: int | None
    finish_reason: str | None
    error_kind: str | None
    error: str | None


class Rewrite(msgspec.Struct, frozen=True):
    """A hook that changed a request or a response."""

    attempt: int
    hook: str
    side: str
    call: int | None


class Stop(msgspec.Struct, frozen=True):
    """The limit or hook that ended an attempt's exchange with the model."""

    attempt: int
    condition: str


class SavedTrace(msgspec.Struct, frozen=True):
    """A trace that the ledger holds; ``size_bytes`` is that of its JSON."""

    attempt: int
    version: int
    size_bytes: int


class Scoring(msgspec.Struct, frozen=True):
    """A scoring after the rollout's end: when, with what, by whom, and the weighted sum of its rewards."""

    scoring: int
    at: int
    task: str
    asked_by: str
    reward: float | None


class Score(msgspec.Struct, frozen=True):
    """A reward or metric of an attempt; a null value never came back. ``scoring`` is 0 for the attempt's own."""

    attempt: int
    kind: str
    name: str
    value: float | None
    weight: float | None
    scoring: int


class Cancellation(msgspec.Struct, frozen=True):
    """Who asked to end the rollout, and how they named it."""

    at: int
    requested_by: str
    selector: str


class Result(msgspec.Struct, frozen=True):
    """The terminal event. ``sample`` and ``trajectory`` are the JSON that the ledger holds."""

    status: str
    sample: msgspec.Raw | None
    err_message: str | None
    err_category: str | None
    reduced: bool
    trajectory: msgspec.Raw | None
    trajectory_saved: str


class History(msgspec.Struct, frozen=True):
    """One rollout from admission to result; ``result`` is null before that.

    Of one whose events are archived the ledger has neither request nor result; ``archived`` says where they are.
    """

    view: RolloutView
    endpoint_origin: str
    request: msgspec.Raw | None
    attempts: list[Attempt]
    phases: list[Phase]
    spans: list[Span]
    calls: list[Call]
    rewrites: list[Rewrite]
    stops: list[Stop]
    traces: list[SavedTrace]
    scores: list[Score]
    scorings: list[Scoring]
    cancellations: list[Cancellation]
    result: Result | None
    archived: Archived | None


_ATTEMPTS = (
    "SELECT s.attempt, s.scheduler, s.at, e.at, e.outcome, e.reason FROM attempt_starts s"
    " LEFT JOIN attempt_ends e ON e.number = s.number AND e.attempt = s.attempt"
    " WHERE s.number = ? ORDER BY s.position"
)
_PHASES = "SELECT attempt, phase, at FROM phases WHERE number = ? ORDER BY position"
_SPANS = "SELECT attempt, stage, started_at, ended_at FROM stage_spans WHERE number = ? ORDER BY position, idx"
_CALLS = (
    "SELECT attempt, call, purpose, model, started_at, first_chunk_at, ended_at, input_tokens, output_tokens,"
    " cached_input_tokens, finish_reason, error_kind, error FROM model_calls WHERE number = ? ORDER BY position"
)
_REWRITES = "SELECT attempt, hook, side, call FROM rewrites WHERE number = ? ORDER BY position"
_STOPS = "SELECT attempt, condition FROM stops WHERE number = ? ORDER BY position"
_TRACES = "SELECT attempt, version, size_bytes FROM traces WHERE number = ? ORDER BY position"
_SCORINGS = "SELECT scoring, at, task, asked_by, reward FROM scorings WHERE number = ? ORDER BY position"
_SCORES = "SELECT attempt, kind, name, value, weight, scoring FROM scores WHERE number = ? ORDER BY position"
_CANCELLATIONS = "SELECT at, requested_by, selector FROM cancellations WHERE number = ? ORDER BY position"
_ENDPOINT = "SELECT endpoint_origin FROM admissions WHERE number = ?"
_EVENT = "SELECT type, version, payload FROM events WHERE position = ?"


async def read_history(reader: Reader, rollout_id: str) -> History:
    """All of a rollout as it stands at one moment.

    Raises:
        UnknownRollout: no rollout has this id.
        LedgerUnavailable: the ledger cannot be read.
    """
    async with reader.at_one_moment() as moment:
        return await _read(moment, rollout_id)


async def _read(reader: Reader, rollout_id: str) -> History:
    state = await reader.state(rollout_id)
    view = None if state is None else await rollout_view(reader, state.number)
    if state is None or view is None:
        raise UnknownRollout(rollout_id)
    archived = await reader.archived(state.number)
    return History(
        view=view,
        endpoint_origin=(await reader.query(_ENDPOINT, (state.number,)))[0][0],
        request=None if archived is not None else await _request(reader, state),
        attempts=await _rows(reader, _ATTEMPTS, state.number, Attempt),
        phases=await _rows(reader, _PHASES, state.number, Phase),
        spans=await _rows(reader, _SPANS, state.number, Span),
        calls=await _rows(reader, _CALLS, state.number, Call),
        rewrites=await _rows(reader, _REWRITES, state.number, Rewrite),
        stops=await _rows(reader, _STOPS, state.number, Stop),
        traces=await _rows(reader, _TRACES, state.number, SavedTrace),
        scorings=await _rows(reader, _SCORINGS, state.number, Scoring),
        scores=await _rows(reader, _SCORES, state.number, Score),
        cancellations=await _rows(reader, _CANCELLATIONS, state.number, Cancellation),
        result=None if state.result_position is None or archived else _result(await reader.result(state)),
        archived=archived,
    )


async def _request(reader: Reader, state: RolloutState) -> msgspec.Raw:
    admitted = codec.decode(*(await reader.query(_EVENT, (state.request_position,)))[0])
    assert isinstance(admitted, RolloutAdmitted)
    return admitted.request


async def _rows[Shape](reader: Reader, text: str, number: int, shape: type[Shape]) -> list[Shape]:
    make: Any = shape
    return [make(*row) for row in await reader.query(text, (number,))]


def _result(event: RolloutFinished) -> Result:
    return Result(**{name: getattr(event, name) for name in Result.__struct_fields__})
