"""One rollout of a task: open, then segments by `step`, then close; or abort. The life cycle and nothing else.

What a rollout decides about model calls is in turns.py, time in budget.py and timing.py, scores in scoring.py.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rollbook.backends.errors import MachineError
from rollbook.backends.stage import StageError, run_stage
from rollbook.endings import to_the_end
from rollbook.interception.endpoint import Endpoint, shared_endpoint
from rollbook.interception.route import RouteError
from rollbook.interception.session import Session
from rollbook.sdk.context import get_rollout_context
from rollbook.sdk.values import MessageDict, finite_number
from rollbook.tasks.arguments import Given
from rollbook.tasks.at_work import AtWork, EndedByAnother
from rollbook.tasks.budget import CumulativeBudget, SharedDeadline
from rollbook.tasks.data import TaskData, checked_messages
from rollbook.tasks.errors import RuntimeStoppedError, TaskError, trace_error
from rollbook.tasks.harnesses.base import Exchange, Harness, HarnessError, checked_harness
from rollbook.tasks.harnesses.returned import returned_messages
from rollbook.tasks.limits import RolloutLimits, checked_limits
from rollbook.tasks.place import Place, lost_error
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.runtimes.errors import UnsupportedNetworkError
from rollbook.tasks.saving import trace_saved
from rollbook.tasks.scoring import check_scores, odd_scores_out, score
from rollbook.tasks.task import Task
from rollbook.tasks.theirs import done, run_shared, run_theirs, telling
from rollbook.tasks.timing import Stage, Stages
from rollbook.tasks.toolsets import ToolsetIndex
from rollbook.tasks.turns import Turns
from rollbook.tasks.verdicts import segment_errors, stage_error
from rollbook.traces.events import called
from rollbook.traces.trace import Trace, TraceError
from rollbook_client.events import Event, MetricRecorded, RewardRecorded
from rollbook_client.jsons import copied
from rollbook_client.statuses import RolloutErrorCategory

__all__ = ["Rollout"]

log = logging.getLogger(__name__)

CLEAN_UP_SEC = 30.0
"""What user code is given to clean up; a runtime's stop has limits of its own."""

type _State = Literal["new", "open", "over", "closed"]


class Rollout:
    """A task, played by a harness in a runtime, seen by the interception endpoint.

    ::

        rollout = Rollout(task, data, harness, SubprocessRuntime, chat_completions_url=url)
        try:
            if await rollout.open():
                await rollout.step()
        finally:
            trace = await rollout.close()

    A runtime that is given ready-made is borrowed: it must be started, and stays so. A factory makes one that the
    rollout owns; one that takes `resources`, as the classes of runtimes do, gets what the task asks for. ``user``
    says that somebody will drive the exchange with messages of their own. ``tell`` is called with each event as it
    happens; ``clock`` is what the agent's budget goes by, of which ``queued_sec`` went by in a queue. It does one thing
    at a time, but any task may close or abort it, which ends what it does. Whatever fails is in the trace, and only a
    cancellation, and a borrowed runtime that its owner stopped, are raised.
    """

    def __init__(
        self,
        task: Task[Any],
        data: TaskData,
        harness: Harness,
        runtime: Runtime | Callable[..., Runtime],
        *,
        chat_completions_url: str,
        api_key: str | None = None,
        limits: RolloutLimits | None = None,
        user: bool = False,
        rollout_id: str | None = None,
        queued_sec: float = 0.0,
        endpoint: Endpoint | None = None,
        tell: Callable[[Event], None] = lambda _event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trace = Trace(rollout_id=rollout_id or data.id, task=data.to_json(), harness=checked_harness(harness).name)
        self.data = data
        self._task = task.for_rollout()
        self._harness = copy.copy(harness)
        self._place = Place(runtime)
        self._url, self._api_key = chat_completions_url, api_key
        self._user = user
        self._endpoint = endpoint
        self._tell = tell = telling(tell, rollout_id=self.trace.rollout_id)
        self._given = Given(owner=self._task, data=data, trace=self.trace, state=self._task.state)
        self._tools = ToolsetIndex([toolset.bound(self._given) for toolset in self._task.toolsets])
        self._turns = Turns(self._given, task.hooks, limits=checked_limits(limits), tell=tell)
        self._stages = Stages(self.trace, tell)
        self._budget = CumulativeBudget(data.timeouts.agent, queued_sec=queued_sec, clock=clock)
        self._session: Session | None = None
        self._prompt: list[MessageDict] = []
        self._segments = 0
        self._state: _State = "new"
        self._at_work = AtWork()
        self._freed = asyncio.Event()
        self._failed = False
        self._runtime_started = False
        self._harness_ready = False
        self._harness_open = False

    @property
    def failed(self) -> bool:
        """Whether something went wrong so far; a stop is none."""
        return self._failed

    @property
    def spent_sec(self) -> float:
        """What the agent has spent of its time budget: the segments' time, without any wait for a user."""
        return self._budget.spent_sec

    @property
    def messages(self) -> list[MessageDict]:
        """The conversation so far, as a copy: the final branch, or what the program starts from."""
        branch = self.trace.final_branch
        messages: list[MessageDict] = copied(self._prompt if branch is None else branch.messages)
        return messages

    # Opening

    async def open(self) -> bool:
        """Bring up everything the program needs; False where that failed, and the trace says why.

        Raises:
            RuntimeStoppedError: the borrowed runtime has been stopped by its owner, or was never started.
            RuntimeError: it was opened before.
        """
        if self._state != "new":
            raise RuntimeError("this rollout was opened before; make a new one for each run")
        self._place.check_lent()
        self._state = "open"
        try:
            with self._at_work:
                return await self._opened()
        except asyncio.CancelledError:
            await self.abort()
            raise
        except EndedByAnother:
            return False

    async def _opened(self) -> bool:
        try:
            await self._set_up()
        except StageError as error:
            self._give_over()
            self._place.check()
            self._record_stage("setup" if self._runtime_started else "boot", error)
        if self._failed:
            self._give_over()
            return False
        self._stages.begin("agent")
        return True

    async def _set_up(self) -> None:
        if self.data.prompt is None and not self._user:
            missing = TaskError("the task has no prompt, and no user opens the exchange; give TaskData a prompt")
            self._record(trace_error("setup", missing, who="the task"))
            return
        try:
            check_scores(self._task, self._harness)
            self._place.agree(self.data.network)
        except (TaskError, UnsupportedNetworkError) as error:
            self._record(trace_error("setup", error, who="the task"))
            return
        await self._boot()
        with self._stages.during("setup"):
            deadline = SharedDeadline(self.data.timeouts.setup)
            await run_shared(
                deadline, "the task's set-up", lambda: done(self._task.setup(self.data, self._place.started))
            )
            self._harness_ready = self._harness_open = True
            await run_shared(
                deadline, "the harness's set-up", lambda: self._harness.setup(self._place.started, self.data)
            )
            await run_stage(self._connect, "opening the interception endpoint", limit_sec=None, name="setup")
            await run_shared(deadline, "handing out the prompt", self._hand_out_prompt)

    async def _hand_out_prompt(self) -> None:
        try:
            self._prompt = await self._turns.hand_out(self.data.messages(), known=0)
        except TaskError as error:
            self._record(trace_error("setup", error, who="the task"))

    async def _boot(self) -> None:
        with self._stages.during("boot"):
            if not self._place.borrowed:
                await run_stage(
                    lambda: self._place.start(self.data.resources), "the runtime's start", limit_sec=None, name="boot"
                )
            self._runtime_started = True
            self._given.runtime = self._place.runtime

    async def _connect(self) -> None:
        try:
            endpoint = self._endpoint or await shared_endpoint()
        except OSError as error:
            raise MachineError(
                f"the endpoint in front of the model found no port on this machine ({error.strerror}); free some"
            ) from error
        tools = self._tools if self._tools.definitions else None
        self._session = session = endpoint.open(self._url, self._api_key, self._turns, tools=tools)
        if (ambient := get_rollout_context()) is not None and ambient.on_secrets is not None:
            ambient.on_secrets(session.chat_url, session.secret)
        await self._place.started.allow(self.data.network, keep=[("127.0.0.1", endpoint.port)])

    # Stepping

    async def step(self, messages: Sequence[MessageDict] | None = None) -> bool:
        """Run the program until it yields; `messages` are a user's, added to the conversation.

        False once the exchange is over: it has failed, was stopped, brought no turn, or was not open. Raises
        ``RuntimeError`` while another task opens or steps, and ``TypeError`` for what are no messages.
        """
        try:
            new = [] if messages is None else checked_messages(messages, "messages")
        except ValueError as error:
            raise TypeError(str(error)) from error
        if self._state != "open" or self._failed or self._turns.stopped:
            return False
        try:
            with self._at_work:
                return await self._stepped(new)
        except asyncio.CancelledError:
            await self.abort()
            raise
        except EndedByAnother:
            return False

    def break_off(self, error: BaseException, *, who: str) -> None:
        """Fail an open rollout by what `who` raised, who drives its exchange; it takes no further step."""
        if self._state == "open":
            self._record(trace_error("agent", error, who=who))
            self._give_over()

    async def _stepped(self, new: list[MessageDict]) -> bool:
        before = self.trace.num_turns
        try:
            self._place.check()
            await self._segment(new)
        except RuntimeStoppedError:
            self._give_over()
            raise
        if self._failed or self._turns.stopped or self.trace.num_turns == before:
            self._give_over()
            return False
        return True

    async def _segment(self, new: list[MessageDict]) -> None:
        turns = self.trace.num_turns
        failure: StageError | None = None
        said: list[MessageDict] | None = None
        gone_sec = self._budget.gone_sec
        try:
            with self._budget.running():
                said = await run_theirs(
                    lambda: self._play(new),
                    "the agent",
                    limit_sec=self._budget.limit_sec,
                    queued_sec=gone_sec,
                    name="agent",
                    late=f"the agent exceeded {self._budget.said}",
                )
        except StageError as error:
            failure = error
        self._place.check()
        if said and self.trace.num_turns == turns and not self.trace.calls:
            self.trace.commit_prompt(returned_messages(said, rollout_id=self.trace.rollout_id))
        for found in segment_errors(failure, turns=self._turns, budget=self._budget):
            self._record(found)
        if failure is not None and not self._turns.stopped:
            self._log("the agent", failure)

    async def _play(self, new: list[MessageDict]) -> list[MessageDict] | None:
        try:
            conversation = await self._conversation(new)
        except TaskError as error:
            self._record(trace_error("agent", error, who="the task"))
            return None
        self._segments += 1
        return await self._harness.run(self._exchange(conversation))

    async def _conversation(self, new: list[MessageDict]) -> list[MessageDict]:
        if self._segments and not self._harness.resumes:
            raise TaskError(f"the harness {self._harness.name} cannot take up a conversation again")
        so_far = self.messages
        if not new:
            return so_far
        conversation = await self._turns.hand_out([*so_far, *new], known=len(so_far))
        if not self.trace.calls:
            self._prompt = conversation
        return conversation

    def _exchange(self, messages: list[MessageDict]) -> Exchange:
        assert self._session is not None
        return Exchange(
            data=self.data,
            messages=copied(messages),  # the program may do with it as it likes
            base_url=self._session.base_url,
            chat_url=self._session.chat_url,
            api_key=self._session.secret,
            runtime=self._place.started,
            tools=self._tools,
            tools_url=self._session.tools_url,
            remaining_sec=self._budget.remaining_sec(),
            info=self.trace.info,
        )

    # Ending

    async def close(self, *, scored: bool = True) -> Trace:
        """Finalize, score and free everything; the trace, also when called again.

        ``scored=False`` leaves finalize and scores out. Another task that opens or steps is told False, and the
        rollout has failed then. Of one that was never opened nothing is kept. Raises ``RuntimeStoppedError``, with
        everything else freed and the trace saved as one that failed, where the borrowed runtime has been stopped by
        its owner.
        """
        if self._state == "closed":
            await self._freed.wait()
            return self.trace
        opened, self._state = self._state != "new", "closed"
        try:
            if await self._at_work.end():
                agent_ran = "agent" in self._stages.open
                stage, what = ("agent", "its agent ran") if agent_ran else ("setup", "it was opened")
                self._record(_ended(stage, "Closed", f"the rollout was closed while {what}"))
            with self._at_work:
                await self._wind_down()
                if scored and opened and not self._failed and not self._place.lost:
                    await self._finalize_and_score()
        except EndedByAnother:
            self._record(_ended("scoring", "Aborted", "the rollout was aborted while it was closed"))
        except BaseException:
            self._failed = True
            await self._free(saving=opened)
            raise
        lost = lost_error() if self._place.lost else None
        if lost is not None:
            stage = self.trace.spans[-1].stage if self.trace.spans else "boot"
            self._record(_ended(stage, type(lost).__name__, str(lost)))
        await self._free(saving=opened)
        if lost is not None:
            raise lost
        return self.trace

    async def abort(self) -> None:
        """Free everything at once, unscored: for cancellations. Does nothing after `close`.

        What was generated until now is kept. What another task does with the rollout is ended: it is told False, or by
        `close` the trace. A cancellation does not cut it short; it is raised afterwards.
        """
        if self._state == "closed":
            await to_the_end(self._hurry())
            return
        begun, self._state = self._state != "new", "closed"
        self._failed = True
        await to_the_end(self._abort(begun=begun))

    async def _abort(self, *, begun: bool) -> None:
        await self._at_work.end()
        await self._free(saving=begun)

    async def _hurry(self) -> None:
        """Have another task's `close` come to its end without scores."""
        if self._at_work.busy:
            self._failed = True
            await self._at_work.end()
        await self._freed.wait()

    async def _wind_down(self) -> None:
        """End the program's session and the endpoint's; what was generated stays whatever fails here."""
        self._stages.end("agent")
        await to_the_end(self._close_harness())
        await self._disconnect()

    async def _close_harness(self) -> None:
        if not self._harness_open:
            return
        self._harness_open = False
        try:
            await run_theirs(self._harness.close, "closing the harness", limit_sec=CLEAN_UP_SEC)
        except StageError as error:
            log.warning("rollout %s: %s; its trajectory is kept", self.trace.rollout_id, error)

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await to_the_end(session.close())

    async def _finalize_and_score(self) -> None:
        timeouts = self.data.timeouts
        try:
            with self._stages.during("finalize"):
                await run_theirs(
                    lambda: done(self._task.finalize(self.data, self._place.started, self.trace)),
                    "finalize",
                    limit_sec=timeouts.finalize,
                    name="finalize",
                )
        except StageError as error:
            self._fail_ending("finalize", error)
            return
        try:
            with self._stages.during("scoring"):
                await run_stage(self._score, "scoring", limit_sec=timeouts.scoring, name="scoring")
        except StageError as error:
            self._fail_ending("scoring", error)
        for found in odd_scores_out(self.trace):
            self._record(found)
        self._tell_scores()

    def _fail_ending(self, stage: Stage, error: StageError) -> None:
        if not self._place.lost:  # that is its owner's fault, and raised to the caller
            self._record_stage(stage, error)

    async def _score(self) -> None:
        errors = await score(self._given, self._task, self._harness)
        if not self._place.lost:
            for error in errors:
                self._record(error)
        for name, value in self._harness.measurements().items():
            self.trace.metrics.setdefault(name, finite_number(value, f"the harness's measurement {name!r}"))

    def _tell_scores(self) -> None:
        for call in self.trace.extra_usage:
            self._tell(called(call))
        for name, value in self.trace.metrics.items():
            self._tell(MetricRecorded(attempt=0, name=name, value=value))
        for name, value in self.trace.rewards.items():
            weight = self.trace.weights.get(name, 1.0)
            self._tell(RewardRecorded(attempt=0, name=name, value=value, weight=weight))

    async def _free(self, *, saving: bool) -> None:
        try:
            await to_the_end(self._free_all(saving=saving))
        finally:
            self._freed.set()

    async def _free_all(self, *, saving: bool) -> None:
        self._stages.end_all()
        await self._disconnect()
        await self._close_harness()
        if self._harness_ready:
            self._harness_ready = False
            try:
                await run_theirs(self._harness.clean_up, "the harness's clean-up", limit_sec=CLEAN_UP_SEC)
            except StageError as error:
                log.warning("rollout %s: %s", self.trace.rollout_id, error)
        await self._place.leave(rollout_id=self.trace.rollout_id)
        if saving:
            self.trace.ok = not self._failed
            self._tell(await trace_saved(self.trace))

    def _give_over(self) -> None:
        """Take no further step; what another task has closed stays so."""
        if self._state == "open":
            self._state = "over"

    # What went wrong

    def _record_stage(self, stage: Stage, error: StageError) -> None:
        self._record(stage_error(stage, error))
        self._log(stage, error)

    def _log(self, what: str, error: StageError) -> None:
        """Say where user code raised what failed the rollout: the trace has the text alone."""
        cause = error.__cause__
        if isinstance(cause, RouteError):
            log.error("rollout %s: %s failed: %s", self.trace.rollout_id, what, cause)
        elif cause is not None and not isinstance(cause, (TaskError, HarnessError)):
            log.error("rollout %s: %s failed", self.trace.rollout_id, what, exc_info=cause)

    def _record(self, error: TraceError) -> None:
        self._failed = True
        self.trace.errors.append(error)


def _ended(stage: str, kind: str, message: str) -> TraceError:
    """The entry for an end that another task or the runtime's owner brought about: it says nothing of the agent."""
    return TraceError(stage=stage, type=kind, message=message, category=RolloutErrorCategory.INTERNAL_ERROR.value)
