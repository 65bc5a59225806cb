"""One parent that keeps child processes running: start, restart with back-off, stop in order, leave none behind.

It knows nothing of what the children do. A child learns that its parent is gone from a pipe, the lifeline, whose
other end nobody else holds; so it ends too when the parent was killed and could tell nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from rollbook.logs import say

LIFELINE_VARIABLE = "ROLLBOOK_LIFELINE_FD"
"""The environment variable that names the read end of the lifeline: end of file means that the parent is gone."""

EX_CONFIG = 78
"""The exit code of a child that cannot work as it is set up (sysexits.h): starting it again would not help."""

EX_KILLED = 128 + signal.SIGINT
"""The supervisor's own exit code when children had to be killed on request."""

FIRST_PAUSE_SEC = 0.1
LONGEST_PAUSE_SEC = 5.0
HEALTHY_AFTER_SEC = 10.0


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How one child is started, always with the same command, variables and open files.

    ``stop_limit_sec`` is how long it may take to end after SIGTERM; then it is killed.
    """

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = {}
    descriptors: tuple[int, ...] = ()
    stop_limit_sec: float = 30.0


class Backoff:
    """The pauses between restarts: doubling while a child keeps dying young, short again after a healthy time."""

    def __init__(self) -> None:
        self._next_sec = FIRST_PAUSE_SEC

    def pause_sec(self, uptime_sec: float) -> float:
        """How long to wait before starting a child again that ran for ``uptime_sec``."""
        if uptime_sec >= HEALTHY_AFTER_SEC:
            self._next_sec = FIRST_PAUSE_SEC
        pause = self._next_sec
        self._next_sec = min(pause * 2, LONGEST_PAUSE_SEC)
        return pause


def describe_exit(code: int) -> str:
    """How a process ended, in words: its code, or the signal that killed it."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Supervisor:
    """Runs children until `stop`, or until one of them ends with `EX_CONFIG`. Lives on one event loop."""

    def __init__(self, children: Sequence[ChildSpec], *, report: Callable[[str], None] = say) -> None:
        self._children = children
        self._report = report
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._code = 0

    def pid(self, name: str) -> int | None:
        """The process id of a child that runs now."""
        process = self._processes.get(name)
        return None if process is None else process.pid

    def stop(self) -> None:
        """Ask every child to end (SIGTERM, in the order of the children); `run` returns once all have."""
        if not self._stopping.is_set():
            self._stopping.set()
            for child in self._children:
                self._signal(child.name, signal.SIGTERM)

    def kill(self) -> None:
        """End every child at once."""
        self._code = self._code or EX_KILLED
        self._stopping.set()
        self._killing.set()

    async def run(self) -> int:
        """Start the children and keep them running. The exit code: 0 after `stop`, else that of whoever gave up.

        No child is left when this returns or raises, and none that has ended stays unreaped.
        """
        async with asyncio.TaskGroup() as tasks:
            for child in self._children:
                tasks.create_task(self._keep(child), name=f"supervise-{child.name}")
        return self._code

    async def _keep(self, child: ChildSpec) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while not self._stopping.is_set():
            started = loop.time()
            try:
                code = await self._run_once(child)
                what = describe_exit(code)
            except OSError as error:  # too many processes, no memory: it may pass
                code, what = None, f"could not be started ({error})"
            if self._stopping.is_set():
                return
            if code == EX_CONFIG:
                self._code = EX_CONFIG
                self.stop()
                return
            pause_sec = backoff.pause_sec(loop.time() - started)
            self._report(f"the {child.name} process {what}; starting it again in {pause_sec:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_sec)

    async def _run_once(self, child: ChildSpec) -> int:
        # A lifeline for each start: a child that makes its end non-blocking does so for nobody else.
        lifeline, held = os.pipe()
        try:
            try:
                process = await self._start(child, lifeline)
            finally:
                os.close(lifeline)
            self._processes[child.name] = process
            try:
                if self._stopping.is_set():  # asked while it was being started
                    self._signal(child.name, signal.SIGTERM)
                return await self._end_of(child, process)
            finally:
                if process.returncode is None:
                    self._signal(child.name, signal.SIGKILL)
                    await process.wait()
                del self._processes[child.name]
        finally:
            os.close(held)

    async def _start(self, child: ChildSpec, lifeline: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *child.command,
            env={**os.environ, **child.variables, LIFELINE_VARIABLE: str(lifeline)},
            pass_fds=(*child.descriptors, lifeline),
            stdin=asyncio.subprocess.DEVNULL,
            # Its own group: Ctrl-C at a terminal reaches the parent alone, which then stops the children in order.
            process_group=0,
        )

    async def _end_of(self, child: ChildSpec, process: asyncio.subprocess.Process) -> int:
        ended = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        killing = asyncio.ensure_future(self._killing.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({ended, killing}, return_when=asyncio.FIRST_COMPLETED, timeout=child.stop_limit_sec)
            if not ended.done():
                if not self._killing.is_set():
                    self._report(f"the {child.name} process did not end within {child.stop_limit_sec:g} s; killing it")
                    self._code = self._code or EX_KILLED
                self._signal(child.name, signal.SIGKILL)
            return await ended
        finally:
            for wait in (ended, stopping, killing):
                wait.cancel()

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._processes.get(name)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


@contextlib.contextmanager
def stopped_by_signals(*, stop: Callable[[], None], kill: Callable[[], None]) -> Iterator[None]:
    """SIGTERM, SIGINT and the terminal's end call ``stop`` on the running loop, once; a later SIGINT calls ``kill``."""
    loop = asyncio.get_running_loop()
    asked = False

    def handle(number: signal.Signals) -> None:
        nonlocal asked
        if not asked:
            asked = True
            stop()
        elif number == signal.SIGINT:
            # SIGTERM often comes twice (to a process and to its group); only a person's second Ctrl-C means "now".
            kill()

    handled = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asks to outlive the terminal
        handled.append(signal.SIGHUP)
    for number in handled:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
