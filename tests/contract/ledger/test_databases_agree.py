"""The same commands at the same times leave the same events, rows and answers on every database."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from rollbook.ledger import commands as cmd
from rollbook.ledger.audit import audit
from rollbook.ledger.replay import verify_replay
from rollbook_client import events as ev
from rollbook_client.events import StageSpan
from rollbook_projections import RolloutState
from tests.contract.ledger.agreeing import QUEUES, SCHEDULERS, answers_of, rows_of
from tests.support.databases import DATABASES, NewLedger
from tests.support.histories import HARD_TEXTS
from tests.support.ledger import (
    DEAD_AFTER_US,
    DIGEST,
    LEASE_US,
    SECOND_US,
    START_US,
    Clock,
    Writing,
    admit,
    api,
    cancel,
    claim,
    close,
    enter,
    finish,
    poll,
    rescore,
    scheduler,
)

jumps = st.sampled_from([0, 1, SECOND_US, DEAD_AFTER_US, DEAD_AFTER_US + 1, LEASE_US // 2, LEASE_US, 2 * LEASE_US])
legal_ids = st.sampled_from(["r-1", "r-2", "r-3", "run/1", "run/2", "R-1", "é", "a\U0010ffff"])
ids = legal_ids | st.sampled_from(["\ud800", "nul\0"])
queues = st.sampled_from(QUEUES)
schedulers = st.sampled_from(SCHEDULERS)
texts = st.sampled_from(["six", "", *(text for text in HARD_TEXTS if len(text) < 100)])
numbers = st.sampled_from([None, 0.0, -0.0, 1.5, 5e-324, -1e308])
scores = st.lists(st.builds(cmd.Score, texts, numbers), max_size=3).map(tuple)
spans = st.lists(st.builds(StageSpan, texts, st.just(START_US), st.integers(START_US, 2**53)), max_size=2).map(tuple)
picks = st.integers(0, 9)
counts = st.none() | st.sampled_from([0, 7, 2**40, 2**62, -1])
records = st.lists(
    st.one_of(
        st.builds(
            ev.ModelCalled,
            st.just(0),
            st.integers(1, 3),
            st.none() | texts,
            st.just(START_US),
            st.integers(START_US, 2**53),
            streamed=st.booleans(),
            input_tokens=counts,
            output_tokens=counts,
            cached_input_tokens=counts,
            finish_reason=st.none() | texts,
            error=st.none() | texts,
            purpose=texts,
        ),
        st.builds(ev.ExchangeStopped, st.just(0), texts),
        st.builds(ev.MessageRewritten, st.just(0), texts, st.sampled_from(["request", "response"])),
        st.builds(ev.TraceSaved, st.just(0), st.just(1), st.integers(0, 2**53), st.just("eJyrBQABdQD5")),
        st.builds(ev.RewardRecorded, st.just(0), texts, numbers, st.sampled_from([1.0, -0.5])),
        st.builds(ev.MetricRecorded, st.just(0), texts, numbers),
        st.builds(ev.StageTimed, st.just(0), spans),
    ),
    max_size=4,
)
scorings = st.builds(
    rescore,
    legal_ids,
    task=texts,
    by=texts,
    scores=scores,
    weights=st.dictionaries(texts, st.sampled_from([1.0, -0.5]), max_size=2),
    reward=numbers,
)

plain_admissions = st.builds(
    admit,
    legal_ids,
    queue=queues,
    max_queue_depth=st.sampled_from([None, None, 3]),
    max_attempts=st.integers(1, 3),
    agent_timeout_us=st.sampled_from([None, SECOND_US, LEASE_US]),
    label=st.none() | texts,
)
admissions = plain_admissions | st.builds(
    msgspec.structs.replace,
    plain_admissions,
    idempotency_key=st.sampled_from(["key-1", "key-2", "KEY-1"]),
    same_digests=st.sampled_from([(), (DIGEST,)]),
)
others = st.one_of(
    st.builds(poll, ids),
    st.builds(cancel, ids, ids),
    st.builds(cmd.Cancel, st.just("api"), prefix=st.sampled_from(["r", "run/", "é", "\U0010ffff", "\ud800"])),
    st.builds(cmd.Cancel, texts, everything=st.just(True), listed_since=st.sampled_from([0, START_US + LEASE_US])),
    st.builds(claim, schedulers, limit=st.integers(1, 4), queues=st.lists(queues, min_size=1, unique=True).map(tuple)),
    scorings,
    st.builds(rescore, ids),
    st.builds(finish, ids, attempt=st.integers(1, 2), scheduler=schedulers),
    st.builds(cmd.ExpireLeases, st.integers(1, 5)),
    st.builds(cmd.ExpireDeadlines, st.integers(1, 5)),
    st.builds(cmd.TakeOver, st.just(DEAD_AFTER_US), by=st.none() | schedulers, limit=st.integers(1, 5)),
    st.builds(cmd.ExtendLeases, texts),
    st.builds(
        cmd.Beat,
        schedulers | st.just("a-1"),
        accepting=st.booleans(),
        capacity=st.integers(0, 4),
        trouble=st.none() | texts,
    ),
    st.builds(cmd.Leave, schedulers | st.just("a-1")),
)


class Agreement(RuleBasedStateMachine):
    """Stores of all databases that are given the same batches, with one clock."""

    def __init__(self, new_ledger: NewLedger) -> None:
        super().__init__()
        self.clock = Clock()
        self.kept = ExitStack()
        folder = Path(self.kept.enter_context(TemporaryDirectory()))
        self.urls = [self.kept.enter_context(new_ledger(database, folder)) for database in DATABASES]
        self.writers = [Writing(url, self.clock) for url in self.urls]
        for writer in self.writers:
            self.kept.callback(writer.store.close)
        self.states: dict[str, RolloutState] = {}
        """The last that was answered of each rollout."""

    def batch(self, *commands: cmd.Command[Any]) -> None:
        answers = [[told(answer) for answer in writer.batch(*commands)] for writer in self.writers]
        assert answers[1:] == answers[:-1]
        for answer in answers[0]:
            for state in answer if isinstance(answer, tuple) else (answer,):
                if isinstance(state, RolloutState):
                    self.states[state.rollout_id] = state

    def attempt(self, pick: int) -> dict[str, Any]:
        """Rollout, number and scheduler of an attempt that is open, as far as was told."""
        open_now = [state for state in self.states.values() if state.scheduler is not None]
        state = open_now[pick % len(open_now)]
        return {"rollout_id": state.rollout_id, "attempt": state.attempt, "scheduler": state.scheduler}

    @rule(microseconds=jumps)
    def time_passes(self, microseconds: int) -> None:
        self.clock.now += microseconds

    @rule(names=st.lists(schedulers, unique=True), dead=st.booleans(), serves=st.lists(queues, min_size=1, unique=True))
    def processes_join(self, names: list[str], dead: bool, serves: list[str]) -> None:
        known_dead = ("s-1", "a-1") if dead else ()
        self.batch(*(scheduler(name, queues=tuple(serves), known_dead=known_dead) for name in names))
        self.batch(api(known_dead=known_dead))

    @rule(commands=st.lists(admissions, min_size=1, max_size=4))
    def rollouts_come(self, commands: list[cmd.Command[Any]]) -> None:
        self.batch(*commands)

    @rule(command=admissions, by=texts, queue=st.just("") | queues, opened=st.just("") | queues)
    def admission_is_closed_for_a_while(self, command: cmd.Command[Any], by: str, queue: str, opened: str) -> None:
        self.batch(cmd.CloseAdmission(by, queue), command)
        self.batch(cmd.OpenAdmission(by, opened), command)
        self.batch(cmd.OpenAdmission(by))

    @precondition(lambda self: self.states)
    @rule(pick=picks)
    def poll_arrives(self, pick: int) -> None:
        self.batch(poll(list(self.states)[pick % len(self.states)]))

    @rule(name=schedulers, free=st.none() | st.integers(1, 4))
    def scheduler_claims(self, name: str, free: int | None) -> None:
        self.batch(cmd.Claim(name, QUEUES, limit=3, free=free))

    @precondition(lambda self: any(state.scheduler is not None for state in self.states.values()))
    @rule(pick=picks, phase=st.sampled_from(["running", "grading"]))
    def attempt_enters_phase(self, pick: int, phase: str) -> None:
        self.batch(enter(**self.attempt(pick), phase=phase))

    @precondition(lambda self: any(state.scheduler is not None for state in self.states.values()))
    @rule(pick=picks, events=records)
    def attempt_records(self, pick: int, events: list[ev.Event]) -> None:
        self.batch(cmd.Record(**self.attempt(pick), events=tuple(events)))

    @precondition(lambda self: any(not state.active for state in self.states.values()))
    @rule(pick=picks, command=scorings)
    def rollout_is_scored_anew(self, pick: int, command: cmd.Rescore) -> None:
        over = [name for name, state in self.states.items() if not state.active]
        self.batch(*[msgspec.structs.replace(command, rollout_id=over[pick % len(over)])] * 2)

    @precondition(lambda self: any(state.scheduler is not None for state in self.states.values()))
    @rule(
        pick=picks,
        status=st.sampled_from(["success", "failure", "cancelled"]),
        err_message=st.none() | texts,
        spans=spans,
        rewards=scores,
        metrics=scores,
    )
    def attempt_finishes(self, pick: int, **outcome: Any) -> None:
        self.batch(finish(**self.attempt(pick), **outcome))

    @precondition(lambda self: any(state.scheduler is not None for state in self.states.values()))
    @rule(pick=picks, outcome=st.sampled_from(["lost", "released"]), reason=texts)
    def attempt_closes(self, pick: int, outcome: str, reason: str) -> None:
        self.batch(close(**self.attempt(pick), outcome=outcome, reason=reason))

    @rule(commands=st.lists(others, min_size=1, max_size=4))
    def anything_else(self, commands: list[cmd.Command[Any]]) -> None:
        self.batch(*commands)

    @rule(silence_us=st.sampled_from([None, SECOND_US]))
    def writer_speaks_for_an_api(self, silence_us: int | None) -> None:
        for writer in self.writers:
            if silence_us is None:
                writer.store.stop_guarding()
            else:
                writer.store.guard_leases(silence_us)

    def teardown(self) -> None:
        with self.kept:
            found = [rows_of(url) for url in self.urls]
            assert found[1:] == found[:-1]
            answers = [asyncio.run(answers_of(url, self.clock.now)) for url in self.urls]
            for read, answer in answers[0].items():
                assert [other[read] for other in answers[1:]] == [answer] * (len(answers) - 1), read
            for url in self.urls:
                assert (audit(url), verify_replay(url)) == ([], [])


def told(answer: Any) -> Any:
    """An answer in a form that can be compared: refusals by what they say."""
    return (type(answer), str(answer)) if isinstance(answer, Exception) else answer


def test_same_commands_leave_the_same_on_every_database(new_ledger: NewLedger) -> None:
    class OnNewLedgers(Agreement):
        def __init__(self) -> None:
            super().__init__(new_ledger)

    run_state_machine_as_test(
        OnNewLedgers, settings=settings(max_examples=settings().max_examples // 8, stateful_step_count=30)
    )
