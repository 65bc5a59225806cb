"""Whatever the order of commands: a search for histories that break a rule of the life cycle."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollbook.ledger import chain, codec
from rollbook.ledger import commands as cmd
from rollbook.ledger.decide import Facts, decide
from rollbook.ledger.refusals import Refusal, StillActive, Superseded
from rollbook_client import events as ev
from rollbook_projections import Recorded, RolloutState, evolve
from tests.support.ledger import (
    CALLED,
    LEASE_US,
    SECOND_US,
    START_US,
    History,
    admit,
    cancel,
    claim,
    close,
    enter,
    finish,
    poll,
    record,
    rescore,
)

SPANS = (ev.StageSpan("agent", 1, 2),)
RECORDS = (
    CALLED,
    ev.StageTimed(attempt=0, spans=SPANS),
    ev.ExchangeStopped(attempt=0, condition="max_turns"),
    ev.RewardRecorded(attempt=0, name="exact", value=1.0),
    ev.MetricRecorded(attempt=0, name="length", value=None),
    ev.TraceSaved(attempt=0, version=1, size_bytes=2, data="eJyrBQABdQD5"),
)
SCORES = ev.RewardRecorded | ev.MetricRecorded
WHILE_OPEN = (
    ev.PhaseEntered | ev.ModelCalled | ev.ExchangeStopped | ev.MessageRewritten | ev.TraceSaved | ev.StageTimed | SCORES
)

schedulers = st.sampled_from(["s-1", "s-2"])
jumps = st.sampled_from([1, SECOND_US, LEASE_US // 2, LEASE_US - 1, LEASE_US, 2 * LEASE_US])
picks = st.integers(0, 5)
"""Which of the rollouts or attempts that are worth it a rule is about, from the newest back."""
rarely = st.integers(0, 3).map(lambda value: value == 3)
"""What ends rollouts is tried less often, so that histories grow long."""


class LifeCycle(RuleBasedStateMachine):
    """Some rollouts among schedulers that die, return late and are superseded, and an API that comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START_US
        self.api_alive = True
        self.api_seen_at = START_US
        self.histories: dict[str, History] = {}
        self.attempts: list[tuple[str, int, str]] = []
        """Every attempt that ever started; commands for the ended ones keep coming."""
        self.endings: dict[str, tuple[Any, ...]] = {}

    def judge(self, rollout_id: str, command: cmd.Command[Any]) -> Refusal | tuple[ev.Event, ...]:
        history = self.histories.get(rollout_id)
        facts = Facts(
            api_seen_at=self.now if self.api_alive else self.api_seen_at,
            scorings=sum(isinstance(event, ev.ScoresRevised) for event in history.events) if history else 0,
        )
        decision = decide(history.state if history else None, facts, command, self.now)
        if isinstance(decision, Refusal):
            return decision
        for event in decision:
            if isinstance(event, ev.LeaseExpired):
                assert event.expired_at <= facts.api_seen_at <= self.now
        if decision:
            if history is None:
                history = self.histories[rollout_id] = History(len(self.histories) + 1)
            history.add(*decision, at=self.now)
        return decision

    def for_attempt(self, index: int, make: Any, **values: Any) -> None:
        rollout_id, number, scheduler = self.attempts[-1 - index % len(self.attempts)]
        current = open_attempt(self.histories[rollout_id].events) == (number, scheduler)
        answer = self.judge(rollout_id, make(rollout_id, attempt=number, scheduler=scheduler, **values))
        assert isinstance(answer, Superseded) != current

    def pick(self, index: int) -> str:
        """An active rollout's id; of an ended one where none is active."""
        active = [key for key, made in self.histories.items() if made.state is not None and made.state.active]
        known = active or list(self.histories)
        return known[-1 - index % len(known)]

    @initialize(max_attempts=st.integers(1, 4), agent_timeout_us=st.sampled_from([None, SECOND_US, LEASE_US]))
    def first_rollout(self, max_attempts: int, agent_timeout_us: int | None) -> None:
        self.judge("r-0", admit("r-0", max_attempts=max_attempts, agent_timeout_us=agent_timeout_us))

    @precondition(lambda self: sum(made.state.active for made in self.histories.values()) < 2)
    @rule(max_attempts=st.integers(1, 4), agent_timeout_us=st.sampled_from([None, None, SECOND_US]))
    def another_rollout(self, max_attempts: int, agent_timeout_us: int | None) -> None:
        rollout_id = f"r-{len(self.histories)}"
        command = admit(rollout_id, max_attempts=max_attempts, agent_timeout_us=agent_timeout_us)
        assert not isinstance(self.judge(rollout_id, command), Refusal)

    @rule(index=picks)
    def known_rollout_is_admitted_again(self, index: int) -> None:
        rollout_id = self.pick(index)
        assert isinstance(self.judge(rollout_id, admit(rollout_id)), Refusal)

    @rule(microseconds=jumps)
    def time_passes(self, microseconds: int) -> None:
        self.now += microseconds
        if self.api_alive:
            self.api_seen_at = self.now

    @rule()
    def api_dies_or_comes_up_and_extends_leases(self) -> None:
        self.api_alive = not self.api_alive
        if not self.api_alive:
            return
        self.api_seen_at = self.now
        for rollout_id, history in self.histories.items():
            self.judge(rollout_id, cmd.ExtendLeases(reason="no API was alive"))
            assert history.state is not None
            assert history.state.terminal or history.state.lease_expires_at >= self.now + LEASE_US

    @rule(index=picks, token_is_right=st.sampled_from([True, True, False]))
    def poll_arrives(self, index: int, token_is_right: bool) -> None:
        # A request that reached a dying process may still be carried out: the API need not be alive.
        rollout_id = self.pick(index)
        answer = self.judge(rollout_id, poll(rollout_id) if token_is_right else poll(rollout_id, digest=bytes(32)))
        assert isinstance(answer, Refusal) == (not token_is_right)

    @precondition(lambda self: any(made.state.scheduler for made in self.histories.values()))
    @rule(index=picks, sure=rarely)
    def somebody_cancels(self, index: int, sure: bool) -> None:
        if sure:
            rollout_id = self.pick(index)
            self.judge(rollout_id, cancel(rollout_id))

    @rule(index=picks, sure=rarely)
    def somebody_cancels_what_waits(self, index: int, sure: bool) -> None:
        state = self.histories[self.pick(index)].state
        if sure and state is not None and state.claimable:
            self.judge(state.rollout_id, cancel(state.rollout_id))
            assert self.histories[state.rollout_id].state != state

    @rule(index=picks, scheduler=schedulers)
    def scheduler_claims(self, index: int, scheduler: str) -> None:
        rollout_id = self.pick(index)
        answer = self.judge(rollout_id, claim(scheduler))
        assert not isinstance(answer, Refusal)
        for event in answer:
            if isinstance(event, ev.AttemptStarted):
                self.attempts.append((rollout_id, event.attempt, scheduler))

    @precondition(lambda self: self.attempts)
    @rule(index=picks, phase=st.sampled_from(["running", "grading"]))
    def attempt_enters_phase(self, index: int, phase: str) -> None:
        self.for_attempt(index, enter, phase=phase)

    @precondition(lambda self: self.attempts)
    @rule(index=picks, events=st.lists(st.sampled_from(RECORDS), min_size=1, max_size=4).map(tuple))
    def attempt_records(self, index: int, events: tuple[ev.Event, ...]) -> None:
        self.for_attempt(index, lambda rollout_id, **values: record(*events, rollout_id=rollout_id, **values))

    @rule(index=picks)
    def rollout_is_scored_anew(self, index: int) -> None:
        ids = list(self.histories)
        rollout_id = ids[-1 - index % len(ids)]
        state = self.histories[rollout_id].state
        assert state is not None
        answer = self.judge(rollout_id, rescore(rollout_id))
        assert isinstance(answer, StillActive) == state.active

    @precondition(lambda self: self.attempts)
    @rule(
        index=picks,
        status=st.sampled_from(["success", "failure", "cancelled"]),
        spans=st.sampled_from([(), SPANS]),
    )
    def attempt_finishes(self, index: int, status: str, spans: tuple[ev.StageSpan, ...]) -> None:
        self.for_attempt(index, finish, status=status, spans=spans)

    @precondition(lambda self: self.attempts)
    @rule(index=picks, outcome=st.sampled_from(["lost", "released"]))
    def attempt_closes(self, index: int, outcome: str) -> None:
        self.for_attempt(index, close, outcome=outcome)

    @rule(index=picks)
    def dead_scheduler_is_taken_over(self, index: int) -> None:
        rollout_id = self.pick(index)
        self.judge(rollout_id, cmd.TakeOver(dead_after_us=1))
        assert open_attempt(self.histories[rollout_id].events) is None

    @rule(index=picks, command=st.sampled_from([cmd.ExpireLeases(), cmd.ExpireDeadlines()]))
    def sweep(self, index: int, command: cmd.Command[int]) -> None:
        self.judge(self.pick(index), command)

    @invariant()
    def attempts_follow_each_other(self) -> None:
        for history in self.histories.values():
            attempt, is_open = 0, False
            for event in history.events:
                if isinstance(event, ev.AttemptStarted):
                    assert not is_open
                    assert event.attempt == attempt + 1
                    attempt, is_open = event.attempt, True
                elif isinstance(event, ev.AttemptEnded):
                    assert is_open
                    assert event.attempt == attempt
                    is_open = False
                elif isinstance(event, SCORES) and event.scoring:
                    assert not is_open
                    assert event.attempt == attempt
                elif isinstance(event, WHILE_OPEN):
                    # Only a deadline that passes in the queue is timed without an attempt.
                    assert is_open or isinstance(event, ev.StageTimed)
                    assert event.attempt == attempt

    @invariant()
    def an_ending_is_final(self) -> None:
        for rollout_id, history in self.histories.items():
            kinds = [event.TYPE for event in history.events]
            assert kinds.count("rollout_finished") <= 1
            state = history.state
            assert state is not None
            assert state.terminal == ("rollout_finished" in kinds)
            if state.terminal:
                after = history.events[kinds.index("rollout_finished") + 1 :]
                clean_up, closed, later = split(after, ev.AttemptEnded)
                if state.scheduler is None and not closed:
                    clean_up, later = [], clean_up  # it was over before any attempt, or with one
                of_attempts = set(ev.RECORDABLE) - {ev.RewardRecorded, ev.MetricRecorded}
                assert {type(event) for event in clean_up} <= of_attempts
                assert {type(event) for event in later} <= {*ev.RECORDABLE[-2:], ev.ScoresRevised}
                revised = [event.scoring for event in later if isinstance(event, ev.ScoresRevised)]
                assert revised == list(range(1, len(revised) + 1))
                ending = (state.status, state.finished_at, state.result_position, state.err_category, state.changed_at)
                assert self.endings.setdefault(rollout_id, ending) == ending

    @invariant()
    def attempts_are_bounded(self) -> None:
        for history in self.histories.values():
            state = history.state
            assert state is not None
            assert 0 <= state.attempts_counted <= state.max_attempts

    @invariant()
    def unfinished_rollout_waits_or_has_an_owner(self) -> None:
        for history in self.histories.values():
            state = history.state
            assert state is not None
            assert state.terminal or state.claimable or state.scheduler is not None
            assert (state.scheduler is None) == (open_attempt(history.events) is None)

    @invariant()
    def fold_of_the_stored_events_is_the_state(self) -> None:
        for history in self.histories.values():
            folded: RolloutState | None = None
            digest = chain.GENESIS
            for kept in history.records:
                event = kept.event
                payload = codec.encode(event)
                digest = chain.link(digest, kept.number, kept.seq, event.TYPE, event.VERSION, kept.recorded_at, payload)
                stored = codec.decode(event.TYPE, event.VERSION, payload)
                folded = evolve(
                    folded,
                    Recorded(kept.position, kept.number, kept.seq, kept.recorded_at, digest, stored),
                )
            assert folded == history.state

    def teardown(self) -> None:
        """From anywhere, a rollout comes to its one end: its owners are lost until no attempt is left."""
        for rollout_id, history in self.histories.items():
            while history.state is not None and history.state.active:
                before = len(history.records)
                self.judge(rollout_id, claim("s-1"))
                self.judge(rollout_id, cmd.TakeOver(dead_after_us=1))
                assert len(history.records) > before
            assert [event.TYPE for event in history.events].count("rollout_finished") == 1


def open_attempt(events: list[ev.Event]) -> tuple[int, str] | None:
    """Attempt and scheduler of the attempt that did not end, by the events alone."""
    started = None
    for event in events:
        if isinstance(event, ev.AttemptStarted):
            started = (event.attempt, event.scheduler)
        elif isinstance(event, ev.AttemptEnded):
            started = None
    return started


def split(events: list[ev.Event], kind: type[ev.Event]) -> tuple[list[ev.Event], list[ev.Event], list[ev.Event]]:
    """What comes before the first event of a kind, that one, and what comes after it."""
    for index, event in enumerate(events):
        if isinstance(event, kind):
            return events[:index], [event], events[index + 1 :]
    return events, [], []


LifeCycle.TestCase.settings = settings(max_examples=max(200, settings().max_examples), stateful_step_count=60)
TestLifeCycle = LifeCycle.TestCase
