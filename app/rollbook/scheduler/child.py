"""One runner process as its scheduler sees it: start, pipe, executions, pulse, death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.settings import DATABASE_VARIABLE, HINT_VARIABLE, SCHEDULER_SETTINGS_VARIABLE
from rollbook.supervisor import LIFELINE_VARIABLE
from rollbook_client.events import Phase

from .memory import Marks
from .runners import UNBOUNDED_SLOTS
from .settings import SETTINGS_VARIABLE, RunnerSettings
from .wire import (
    Assignment,
    Broken,
    Cancel,
    Entered,
    Finished,
    FramePipe,
    Ready,
    Recorded,
    Shutdown,
    Staged,
    ToScheduler,
)

log = logging.getLogger(__name__)

STACK_BYTES = 16_384
LATE_LOOK_SEC = 3.0
"""When this process looked away for longer (it was stopped, or its machine was), a pulse missed meanwhile is none."""
OWN_FOLDER = str(Path(__file__).parents[1])
LEFTOVER_SEC = 10.0
"""How long a runner whose backend has shut down may take to exit."""
LAST_WORDS_SEC = 1.0
"""How long a dead runner's pipe is read for what it still holds; processes that user code forked may keep it open."""
PRIVATE_VARIABLES = frozenset(
    {KEY_VARIABLE, DATABASE_VARIABLE, SCHEDULER_SETTINGS_VARIABLE, HINT_VARIABLE, LIFELINE_VARIABLE}
)


class Running:
    """An execution in a runner, with what judges whether it overstays (monotonic seconds)."""

    __slots__ = ("assignment", "cancelled_at", "stage", "told")

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.stage = Staged(assignment.key)
        """What it does, and how long it may; nothing before its runner has told of it."""
        self.told: tuple[Phase, ...] = ()
        """The phases whose beginning was passed on."""
        self.cancelled_at: float | None = None


class ChildEvents(msgspec.Struct):
    """What a child reports to its pool."""

    ready: Callable[[Child], None]
    broken: Callable[[str], None]
    entered: Callable[[int, Phase], None]
    recorded: Callable[[Recorded], None]
    finished: Callable[[Finished], None]
    died: Callable[[Child], None]


class Child:
    """A runner process. Its executions are in ``running`` until they are reported finished or it dies."""

    def __init__(
        self,
        entrypoint: str,
        events: ChildEvents,
        *,
        max_concurrent: int | None,
        memory: int | None,
        record_model_calls: bool = True,
    ) -> None:
        self._entrypoint = entrypoint
        self._events = events
        self._max_concurrent = max_concurrent
        self._memory = memory
        self._record_model_calls = record_model_calls
        self._marks = Marks.create()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        self._pipe: FramePipe[ToScheduler] | None = None
        self._process: Process | None = None
        self._pipe_ended = asyncio.Event()
        self._gone = asyncio.Event()
        self._last_pulse = -1
        self._looked_at = 0.0
        self.pulsed_at = asyncio.get_running_loop().time()
        self.running: dict[int, Running] = {}
        self.slots = 0
        self.is_ready = False
        self.retired = False
        """Takes no more work; ends when what it runs is over."""
        self.broken = False
        self._asked_to_end = False

    @property
    def pid(self) -> int | None:
        """The process id, once started."""
        return None if self._process is None else self._process.pid

    @property
    def free(self) -> int:
        """Slots that can take work."""
        return 0 if self.retired or not self.is_ready else max(self.slots - len(self.running), 0)

    async def start(self) -> None:
        """Start the process; `ready`, `broken` or `died` follows."""
        ours, theirs = socket.socketpair()
        settings = RunnerSettings(
            entrypoint=self._entrypoint,
            pipe=theirs.fileno(),
            marks=self._marks.descriptor,
            stacks=self._stacks.fileno(),
            parent=os.getpid(),
            max_concurrent=self._max_concurrent,
            record_model_calls=self._record_model_calls,
            memory_bytes=self._memory,
        )
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # a file in the current folder must not pass for a library
                    "-m",
                    "rollbook.scheduler.runner",
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(settings.pipe, settings.marks, settings.stacks),
                    env={**public_environment(), SETTINGS_VARIABLE: msgspec.json.encode(settings).decode()},
                    start_new_session=True,  # a group of its own: what user code left behind ends with the runner
                )
            except BaseException:
                ours.close()
                raise
        await asyncio.get_running_loop().create_unix_connection(self._frames, sock=ours)
        self._watcher = asyncio.create_task(self._watch(), name=f"runner-{self.pid}")

    def _frames(self) -> FramePipe[ToScheduler]:
        self._pipe = FramePipe(ToScheduler, self._receive, self._pipe_ended.set)  # type: ignore[arg-type]
        return self._pipe

    async def _watch(self) -> None:
        assert self._process is not None
        await self._process.wait()
        self.is_ready = False
        self.retired = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # Results that were sent before the death may still be on their way.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SEC):
                await self._pipe_ended.wait()
        self._pipe_ended.set()  # what user code left behind may hold the other end; nobody waits for its words
        self._gone.set()
        self._events.died(self)

    def _receive(self, message: ToScheduler) -> None:
        loop = asyncio.get_running_loop()
        match message:
            case Finished():
                running = self.running.pop(message.key, None)
                if running is not None:
                    if running.told and message.phases:
                        left = tuple(phase for phase in message.phases if phase not in running.told)
                        message = msgspec.structs.replace(message, phases=left)
                    self._events.finished(message)
            case Entered():
                self._enter(message.key, message.phase)
            case Staged():
                if message.key in self.running:
                    self.running[message.key].stage = message
            case Recorded():
                if message.key in self.running:
                    self._events.recorded(message)
            case Ready():
                self.slots = UNBOUNDED_SLOTS if message.max_concurrent is None else message.max_concurrent
                self.is_ready = True
                self.pulsed_at = loop.time()
                self._events.ready(self)
            case Broken():
                self.broken = True
                self._events.broken(message.reason)

    def _enter(self, key: int, phase: Phase) -> None:
        running = self.running.get(key)
        if running is not None and phase not in running.told:
            running.told = (*running.told, phase)
            self._events.entered(key, phase)

    def tell_what_blocks(self) -> None:
        """Take in where the execution stands whose code blocks the runner: its own reports wait behind that code."""
        place = self._marks.place
        if place is None or place.key not in self.running:
            return
        self.running[place.key].stage = place.stage
        self._enter(place.key, "running")
        if place.phase == "grading":
            self._enter(place.key, "grading")

    def run(self, assignment: Assignment) -> None:
        """Hand over an execution."""
        self.running[assignment.key] = Running(assignment)
        self._send(assignment)

    def cancel(self, key: int) -> None:
        """Request an execution's end."""
        running = self.running.get(key)
        if running is not None and running.cancelled_at is None:
            running.cancelled_at = time.monotonic()
            self._send(Cancel(key))

    def _send(self, message: msgspec.Struct) -> None:
        if self._pipe is not None:
            self._pipe.send(message)

    def stalled_sec(self) -> float:
        """For how long the runner's event loop has not come round, by its pulse in shared memory."""
        now = asyncio.get_running_loop().time()
        pulse = self._marks.pulse
        late = now - self._looked_at > LATE_LOOK_SEC
        if pulse != self._last_pulse or late or not self.is_ready:
            self._last_pulse = pulse
            self.pulsed_at = now
        self._looked_at = now
        return now - self.pulsed_at

    @property
    def culprit(self) -> int:
        """The key of the execution whose code runs, or ran when the process died; 0 if none did."""
        return self._marks.current

    def blocked_in(self) -> str:
        """Where the blocked interpreter stands, as `faulthandler` saw it; empty if it wrote nothing."""
        self._stacks.seek(0)
        return innermost_frames(self._stacks.read(STACK_BYTES).decode("utf-8", "replace"))

    @property
    def tidied_up(self) -> bool:
        """Whether the process ended as it was asked to, after its backend had shut down."""
        return self._asked_to_end and self._process is not None and self._process.returncode == 0

    def death(self) -> str:
        """How the process ended, in the words that follow its name."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "is gone"
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (the kernel does that when memory runs out)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"

    async def shut_down(self, timeout_sec: float, *, leftover_sec: float = LEFTOVER_SEC) -> None:
        """Let the backend release what it owns, then end the process; by force after ``timeout_sec``.

        Once the backend is done the process has ``leftover_sec`` to exit: a thread that user code left running
        would keep the interpreter alive for ever.
        """
        self.retired = True
        if self._process is None:
            return
        self._asked_to_end = True
        self._send(Shutdown())
        try:
            async with asyncio.timeout(timeout_sec) as timer:
                await self._pipe_ended.wait()
                leftover_ends = asyncio.get_running_loop().time() + leftover_sec
                timer.reschedule(min(timer.when() or leftover_ends, leftover_ends))
                await self._gone.wait()
        except TimeoutError:
            what = "threads or tasks that user code left behind" if self._pipe_ended.is_set() else "its shutdown"
            log.warning("runner %s is killed: %s did not end in time", self.pid, what)
            await self.kill()

    async def kill(self) -> None:
        """End the process at once and wait until it is gone."""
        self.retired = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._gone.wait()

    def close(self) -> None:
        """Let go of pipe and memory; the process must be gone."""
        if self._pipe is not None:
            self._pipe.close()
        self._marks.close()
        self._stacks.close()


def public_environment() -> dict[str, str]:
    """Our environment, without what user code has no business with."""
    return {name: value for name, value in os.environ.items() if name not in PRIVATE_VARIABLES}


def innermost_frames(stacks: str, count: int = 3) -> str:
    """The innermost frames of the thread that `faulthandler` lists last, the main thread, down to the author's code.

    What calls that code is ours, and says nothing to its author.
    """
    frames: list[str] = []
    for line in stacks.rpartition("(most recent call first):")[2].splitlines():
        frame = line.strip().removeprefix("File ").replace('"', "")
        if frame.startswith(OWN_FOLDER):
            if frames:
                break
            continue  # what the author called in us, such as the stream that takes prints
        if frame != line.strip():
            frames.append(frame)
    return "; called from ".join(frames[:count])
