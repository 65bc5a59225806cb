"""The life of a runtime that we make: start and stop on every path, its commands, its files."""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import shlex
import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rollbook.backends.limiter import Slots
from rollbook.tasks.checks import check_whole
from rollbook.tasks.data import Resources
from rollbook.tasks.errors import RuntimeStoppedError
from rollbook.tasks.threads import in_thread
from rollbook.tuning import former_file_limit

from .base import READ_LIMIT_BYTES, Completed, Runtime
from .errors import RuntimeFailedError, RuntimeUnavailableError
from .files import parts_below, read_file, write_file
from .homes import Home, default_parent, sweep
from .output import OUTPUT_LIMIT_BYTES
from .processes import CommandTooLongError, HostProcess

__all__ = ["LAUNCH", "OwnedRuntime"]

log = logging.getLogger(__name__)

LAUNCH = r"""
[ "$2" = - ] || ulimit -v "$2" || exit 125
[ "$3" = - ] || ulimit -S -n "$3" || exit 125
cd -- "$1" 2>/dev/null || {
    why='is not there'
    [ ! -L "$1" ] && [ ! -e "$1" ] || why='is no folder'
    [ ! -d "$1" ] || why='may not be entered'
    printf '\006the command was not started: the folder %s %s\n' "$1" "$why" >&2
    exit 126
}
shift 3
printf '\006' >&2
eval "exec /usr/bin/env -i $LAUNCH_ENV \"\$@\""
"""
"""A shell's way into a command: folder, memory limit (KiB, or -), limit on open files (or -), then the command itself.

What it writes just before is how a command that fails is told from one that was never started. Where there is no such
folder it has failed: programs may have removed it, and nothing of the runtime is broken. The command's variables
come as the text of one, so that none has a meaning for those who start it: in a sandbox they still have rights, which
``LD_PRELOAD`` would give away; and beside a command line they can be read by nobody else.
"""

_CANNOT_BE_STARTED = 126
"""As shells have it."""
_ENDING_SEC = 5.0
"""How long a killed command may take to be gone before a cancelled call stops waiting for it."""
_STOPPED_MEANWHILE = "the runtime was stopped while it started"
_SWEEP_PAUSE_SEC = 10.0
_swept: dict[Path, float] = {}
"""Where runtimes of this process are made, and when those of killed owners were last removed there."""


class OwnedRuntime(Runtime):
    """What both runtimes have in common; a subclass says how it comes up and how it starts a command."""

    enforces: frozenset[str] = frozenset()
    """Which fields of `Resources` hold; what else a task asks for is left to the machine, with a warning in the log."""

    def __init__(
        self,
        *,
        resources: Resources | None = None,
        env: Mapping[str, str] = {},
        parent: Path | None = None,
        slots: Slots | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> None:
        """`env` are variables for every program; `parent` is the folder that the runtime's own is made in, of this
        user alone; `slots` limit how many runtimes are up at a time: `start` waits for one, `stop` frees it."""
        check_whole(output_limit_bytes, "output_limit_bytes", least=0, optional=False)
        self._resources = resources or Resources()
        self._env = dict(env)
        self._parent = default_parent() if parent is None else parent
        self._slots = slots
        self._limit = output_limit_bytes
        self._undo = AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._home: Path | None = None
        self._running: set[HostProcess] = set()
        self._left: set[HostProcess] = set()
        """Ended, but what they left behind still holds their output."""

    @property
    def stopped(self) -> bool:
        return self._stopping is not None

    async def start(self) -> None:
        self._check_new()
        self._starting = asyncio.create_task(self._bring_up(), name="runtime-start")
        try:
            await self._starting
        except BaseException as error:
            stopped = self.stopped
            try:
                await self.stop()
            except RuntimeFailedError:  # what `start` failed of is the caller's to know, not this
                log.exception("A runtime that did not start could not be removed")
            if stopped and isinstance(error, asyncio.CancelledError):
                raise RuntimeStoppedError(_STOPPED_MEANWHILE) from None
            raise
        if self.stopped:
            raise RuntimeStoppedError(_STOPPED_MEANWHILE)

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._tear_down(), name="runtime-stop")
        await asyncio.shield(self._stopping)

    async def run(
        self,
        command: Sequence[str] | str,
        *,
        env: Mapping[str, str] = {},
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout_sec: float | None = None,
        on_cut: Callable[[Completed], object] | None = None,
    ) -> Completed:
        self._check()
        marks = self._marks()
        variables = self._variables() | self._env | dict(env) | marks
        try:
            process = HostProcess(
                self._command(self._launch(command, cwd)),
                env={"LAUNCH_ENV": _as_words(variables), **marks},
                stdin=stdin,
                cwd="/",  # the launcher goes on from there; programs are told of no folder of this process's
                limit=self._limit,
            )
        except CommandTooLongError as error:  # it may hold what a program said
            return Completed(_CANNOT_BE_STARTED, stderr=f"{error}\n".encode())
        self._running.add(process)
        timed_out = False
        try:
            async with asyncio.timeout(timeout_sec):
                await process.wait()
        except TimeoutError:
            timed_out = True
            await self._end(process)
        except BaseException:
            try:
                await self._end(process)
            except RuntimeFailedError:
                log.exception("A cancelled command goes on")
            else:
                if on_cut is not None:
                    on_cut(_completed(process))
            raise
        finally:
            self._let_go(process)
        kept_out = not process.started and not timed_out
        by_programs = kept_out and await self._programs_keep_out(process)
        if self.stopped:
            raise RuntimeStoppedError("the runtime was stopped while a command ran in it")
        self._check_health()
        if not kept_out:
            return _completed(process, timed_out=timed_out)
        said = process.stderr.data.decode(errors="replace").strip()
        if not by_programs:
            raise RuntimeFailedError(f"the command was not started (exit code {process.exit_code}): {said}")
        code = process.exit_code if process.signalled else _CANNOT_BE_STARTED
        how = f"killed by signal {code - 128}" if process.signalled else said
        return Completed(code, stderr=f"programs in the runtime kept the command from being started: {how}\n".encode())

    def _launch(self, command: Sequence[str] | str, cwd: str | None) -> list[str]:
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not words:
            raise ValueError("an empty command; name the program first")
        if "=" in words[0]:  # `env` would take it for a variable
            words = ["/bin/sh", "-c", 'exec "$@"', "sh", *words]
        memory = self._resources.memory_mb
        files = former_file_limit()
        limits = ["-" if memory is None else str(memory * 1024), "-" if files is None else str(files)]
        folder = posixpath.join(self.workdir, cwd) if cwd else self.workdir
        return ["/bin/sh", "-c", LAUNCH, "sh", folder, *limits, *words]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check()
        parts = self._parts(path)
        root, owner = self._root(), self._owner
        await in_thread(lambda: write_file(root, parts, data, mode=mode, owner=owner))

    async def read(self, path: str, *, limit_bytes: int = READ_LIMIT_BYTES) -> bytes:
        self._check()
        parts = self._parts(path)
        root = self._root()
        return await in_thread(lambda: read_file(root, parts, limit_bytes=limit_bytes))

    def url_of(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    # What a subclass says

    @property
    @abstractmethod
    def _shown_root(self) -> str:
        """The uppermost folder that `read` and `write` reach, as programs see it."""

    @property
    def _owner(self) -> int | None:
        """The user to whom written files belong, where it is not this process's."""
        return None

    def _parts(self, path: str) -> tuple[str, ...]:
        """The names that lead from that folder to a file that may be read and written."""
        return parts_below(path, root=self._shown_root, workdir=self.workdir)

    @abstractmethod
    def _root(self) -> Path:
        """That folder as the host sees it."""

    @abstractmethod
    def _variables(self) -> dict[str, str]:
        """What a program sees besides its own variables."""

    def _marks(self) -> dict[str, str]:
        """Variables that no other replaces."""
        return {}

    @abstractmethod
    def _command(self, launch: Sequence[str]) -> list[str]:
        """How the host starts this inside."""

    @abstractmethod
    async def _come_up(self, home: Home) -> None:
        """Make ready what is inside the home; each thing that must be undone goes to `_undo` as it is made."""

    async def _programs_keep_out(self, process: HostProcess) -> bool:
        """Whether a command that was not started was kept from it by programs in the runtime, not by the machine."""
        return process.signalled

    def _check_health(self) -> None:
        """Raise RuntimeFailedError if the runtime itself has broken down; by itself a folder cannot."""

    def _kill(self, process: HostProcess) -> None:
        """Kill the group of a command."""
        process.signal_group(signal.SIGKILL)

    # How it lives and ends

    async def _bring_up(self) -> None:
        if not hasattr(os, "pidfd_open"):
            raise RuntimeUnavailableError("runtimes need Linux, 5.3 or later, for what tells of a process's end")
        if self._slots is not None:
            if not self._slots.take():
                await self._slots.wait()
            self._undo.callback(self._slots.give_back)
        await _sweep_now_and_then(self._parent)
        home = Home(self._parent)
        self._undo.push_async_callback(home.remove)
        self._home = home.path
        for name in self._resources.__struct_fields__:
            if getattr(self._resources, name) is not None and name not in self.enforces:
                log.warning("%s does not enforce resources.%s", type(self).__name__, name)
        self._undo.callback(self._close_left)
        await self._come_up(home)

    async def _tear_down(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._undo.aclose()  # in reverse order, and on where one of them fails

    async def _end(self, process: HostProcess) -> None:
        """Kill a command and see it gone; a cancellation does not keep it alive."""
        self._kill(process)
        try:
            async with asyncio.timeout(_ENDING_SEC):
                await process.wait()
        except TimeoutError as error:  # stuck in the kernel
            raise RuntimeFailedError(f"a command could not be ended: process {process.pid}") from error

    async def _end_running(self) -> None:
        for process in list(self._running):
            self._kill(process)
        for process in list(self._running):
            await self._end(process)

    def _let_go(self, process: HostProcess) -> None:
        """Read on what servers write that the command left behind, while the runtime is up."""
        self._running.discard(process)
        self._left = {left for left in (*self._left, process) if left.is_open}
        if self.stopped:
            self._close_left()

    def _close_left(self) -> None:
        for process in self._left:
            process.close()
        self._left.clear()

    def _check_new(self) -> None:
        if self.stopped:
            raise RuntimeStoppedError("the runtime was stopped before; make a new one")
        if self._starting is not None:
            raise RuntimeError("a runtime is started once; make a new one")

    def _check(self) -> None:
        if self.stopped:
            raise RuntimeStoppedError("the runtime was stopped; use it before its owner stops it")
        if self._starting is None or not self._starting.done():
            raise RuntimeStoppedError("the runtime is not started; await start() first")


async def _sweep_now_and_then(parent: Path) -> None:
    """Remove what killed owners left, unless this process has just done so. No runtime fails for it."""
    now = time.monotonic()
    if now - _swept.get(parent, -_SWEEP_PAUSE_SEC) < _SWEEP_PAUSE_SEC:
        return
    _swept[parent] = now
    try:
        for path in await sweep(parent):
            log.warning("Removed the runtime folder %s, whose owner was killed", path)
    except RuntimeFailedError as error:
        log.error("%s", error)


def _completed(process: HostProcess, *, timed_out: bool = False) -> Completed:
    return Completed(
        exit_code=process.exit_code,
        stdout=process.stdout.data,
        stderr=process.stderr.data,
        timed_out=timed_out,
        stdout_dropped=process.stdout.dropped,
        stderr_dropped=process.stderr.dropped,
    )


def _as_words(variables: Mapping[str, str]) -> str:
    """Variables as words of a shell."""
    for name in variables:
        if not name or "=" in name:
            raise ValueError(f"not the name of a variable: {name!r}")
    return shlex.join(f"{name}={value}" for name, value in variables.items())
