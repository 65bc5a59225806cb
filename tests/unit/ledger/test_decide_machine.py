"""Whatever the order of commands: a search for histories that break a rule of the life cycle."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollbook.ledger import chain, codec
from rollbook.ledger import commands as cmd
from rollbook.ledger.decide import Facts, decide
from rollbook.ledger.refusals import Refusal, Superseded
from rollbook_client import events as ev
from rollbook_projections import Recorded, RolloutState, evolve
from tests.support.ledger import (
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
)

IDS = ("r-1", "r-2")
SCHEDULERS = ("s-1", "s-2", "s-3")
SPANS = (ev.StageSpan("agent", 1, 2),)

ids = st.sampled_from(IDS)
schedulers = st.sampled_from(SCHEDULERS)
jumps = st.sampled_from([0, 1, SECOND_US, LEASE_US // 2, LEASE_US - 1, LEASE_US, 2 * LEASE_US])


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
        facts = Facts(api_seen_at=self.now if self.api_alive else self.api_seen_at)
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

    def for_attempt(self, attempt: tuple[str, int, str], make: Any, **values: Any) -> None:
        rollout_id, number, scheduler = attempt
        current = open_attempt(self.histories[rollout_id].events) == (number, scheduler)
        answer = self.judge(rollout_id, make(rollout_id, attempt=number, scheduler=scheduler, **values))
        assert isinstance(answer, Superseded) != current

    @initialize(max_attempts=st.integers(1, 3), agent_timeout_us=st.sampled_from([None, SECOND_US, LEASE_US]))
    def first_rollout(self, max_attempts: int, agent_timeout_us: int | None) -> None:
        self.judge("r-1", admit("r-1", max_attempts=max_attempts, agent_timeout_us=agent_timeout_us))

    @rule(rollout_id=ids, max_attempts=st.integers(1, 3))
    def admits(self, rollout_id: str, max_attempts: int) -> None:
        known = rollout_id in self.histories
        answer = self.judge(rollout_id, admit(rollout_id, max_attempts=max_attempts))
        assert isinstance(answer, Refusal) == known

    @rule(microseconds=jumps)
    def time_passes(self, microseconds: int) -> None:
        self.now += microseconds
        if self.api_alive:
            self.api_seen_at = self.now

    @precondition(lambda self: self.api_alive)
    @rule()
    def api_dies(self) -> None:
        self.api_alive = False

    @precondition(lambda self: not self.api_alive)
    @rule()
    def api_comes_up_and_extends_leases(self) -> None:
        self.api_alive = True
        self.api_seen_at = self.now
        for rollout_id in IDS:
            self.judge(rollout_id, cmd.ExtendLeases(reason="no API was alive"))
        for history in self.histories.values():
            assert history.state is not None
            assert history.state.terminal or history.state.lease_expires_at >= self.now + LEASE_US

    @precondition(lambda self: self.api_alive)
    @rule(rollout_id=ids, digest=st.sampled_from([None, bytes(32)]))
    def polls(self, rollout_id: str, digest: bytes | None) -> None:
        command = poll(rollout_id) if digest is None else poll(rollout_id, digest=digest)
        answer = self.judge(rollout_id, command)
        assert isinstance(answer, Refusal) == (digest is not None or rollout_id not in self.histories)

    @rule(rollout_id=ids)
    def cancels(self, rollout_id: str) -> None:
        self.judge(rollout_id, cancel(rollout_id))

    @rule(rollout_id=ids, scheduler=schedulers)
    def claims(self, rollout_id: str, scheduler: str) -> None:
        answer = self.judge(rollout_id, claim(scheduler))
        assert not isinstance(answer, Refusal)
        for event in answer:
            if isinstance(event, ev.AttemptStarted):
                self.attempts.append((rollout_id, event.attempt, scheduler))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), phase=st.sampled_from(["running", "grading"]))
    def enters_phase(self, data: st.DataObject, phase: str) -> None:
        self.for_attempt(data.draw(st.sampled_from(self.attempts)), enter, phase=phase)

    @precondition(lambda self: self.attempts)
    @rule(
        data=st.data(), status=st.sampled_from(["success", "failure", "cancelled"]), spans=st.sampled_from([(), SPANS])
    )
    def finishes(self, data: st.DataObject, status: str, spans: tuple[ev.StageSpan, ...]) -> None:
        self.for_attempt(data.draw(st.sampled_from(self.attempts)), finish, status=status, spans=spans)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), outcome=st.sampled_from(["lost", "released"]))
    def closes(self, data: st.DataObject, outcome: str) -> None:
        self.for_attempt(data.draw(st.sampled_from(self.attempts)), close, outcome=outcome)

    @rule(rollout_id=ids)
    def dead_scheduler_is_taken_over(self, rollout_id: str) -> None:
        self.judge(rollout_id, cmd.TakeOver(dead_after_us=1))
        if rollout_id in self.histories:
            assert open_attempt(self.histories[rollout_id].events) is None

    @rule(rollout_id=ids, command=st.sampled_from([cmd.ExpireLeases(), cmd.ExpireDeadlines()]))
    def sweeps(self, rollout_id: str, command: cmd.Command[int]) -> None:
        self.judge(rollout_id, command)

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
                elif isinstance(event, ev.PhaseEntered | ev.RewardRecorded | ev.MetricRecorded):
                    assert is_open
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
                after = kinds[kinds.index("rollout_finished") + 1 :]
                assert after in ([], ["attempt_ended"], ["stage_timed", "attempt_ended"])
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
            for record in history.records:
                event = record.event
                payload = codec.encode(event)
                digest = chain.link(
                    digest, record.number, record.seq, event.TYPE, event.VERSION, record.recorded_at, payload
                )
                stored = codec.decode(event.TYPE, event.VERSION, payload)
                folded = evolve(
                    folded,
                    Recorded(record.position, record.number, record.seq, record.recorded_at, digest, stored),
                )
            assert folded == history.state

    def teardown(self) -> None:
        """From anywhere, a rollout comes to its one end: its owner is lost until no attempt is left."""
        for rollout_id, history in self.histories.items():
            state = history.state
            assert state is not None
            for _ in range(state.max_attempts + 1):
                self.judge(rollout_id, claim("s-1"))
                self.judge(rollout_id, cmd.TakeOver(dead_after_us=1))
            assert [event.TYPE for event in history.events].count("rollout_finished") == 1
            assert history.state is not None
            assert not history.state.active


def open_attempt(events: list[ev.Event]) -> tuple[int, str] | None:
    """Attempt and scheduler of the attempt that did not end, by the events alone."""
    started = None
    for event in events:
        if isinstance(event, ev.AttemptStarted):
            started = (event.attempt, event.scheduler)
        elif isinstance(event, ev.AttemptEnded):
            started = None
    return started


LifeCycle.TestCase.settings = settings(stateful_step_count=40)
TestLifeCycle = LifeCycle.TestCase
