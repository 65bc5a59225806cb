"""A process on this host: started in a group of its own, waited for without a thread, ended as a group."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .errors import RuntimeFailedError
from .output import OUTPUT_LIMIT_BYTES, OutputTail

__all__ = ["CommandTooLongError", "HostProcess", "call"]


class CommandTooLongError(RuntimeFailedError):
    """An argument is longer than the system takes, or all of them and the variables together are."""


class HostProcess:
    """A process in a session and a group of its own.

    It is started in the calling thread, the event loop's: the kernel binds a child that is to end with its parent to
    the thread that started it. asyncio's own subprocesses are not used: they wait for everyone who holds the pipes,
    so for a server that a command left behind.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: bytes | None = None,
        cwd: str | None = None,
        descriptors: Sequence[int] = (),
        limit: int = OUTPUT_LIMIT_BYTES,
    ) -> None:
        """Start it.

        Raises:
            CommandTooLongError: the command and its variables are longer than the system takes.
            RuntimeFailedError: it could not be started for another reason.
            ValueError: there is a zero byte in the command.
        """
        out_read, out_write = _pipe()
        try:
            err_read, err_write = _pipe()
        except BaseException:
            os.close(out_read)
            os.close(out_write)
            raise
        try:
            with tempfile.TemporaryFile() as source:
                if stdin:
                    source.write(stdin)
                    source.seek(0)
                self._process = subprocess.Popen(
                    list(command),
                    env=dict(env),
                    cwd=cwd,
                    stdin=source if stdin else subprocess.DEVNULL,
                    stdout=out_write,
                    stderr=err_write,
                    pass_fds=tuple(descriptors),
                    start_new_session=True,
                )
            try:
                self._watch = os.pidfd_open(self._process.pid)
            except OSError:  # no descriptor left: nobody would learn of its end
                self._process.kill()
                self._process.wait()
                raise
        except BaseException as error:
            os.close(out_read)
            os.close(err_read)
            if isinstance(error, OSError):
                raise _failure(error, command[0]) from error
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        self.stdout = OutputTail(out_read, limit=limit)
        self.started = False
        """Whether it has written the byte `STARTED` to its error output, before anything else."""
        self._turned = asyncio.Event()
        self.stderr = OutputTail(err_read, limit=limit, on_start=self._start)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._watch, self._reap)

    @property
    def pid(self) -> int:
        """Its process id; that of its group too. Another process may have it once this one has `ended`."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended and been waited for."""
        return self._ended.is_set()

    @property
    def exit_code(self) -> int:
        """128 + n where signal n ended it. Only after it has ended."""
        code = self._process.returncode
        assert code is not None
        return 128 - code if code < 0 else code

    @property
    def signalled(self) -> bool:
        """Whether a signal ended it. Only after it has ended."""
        code = self._process.returncode
        assert code is not None
        return code < 0

    async def wait(self) -> int:
        """Wait for its end and return the exit code. What it wrote until then is in its tails."""
        await self._ended.wait()
        return self.exit_code

    async def come_up(self) -> bool:
        """Wait until it has `started`, or ended without that; returns whether it has."""
        await self._turned.wait()
        return self.started

    def signal_group(self, number: signal.Signals) -> None:
        """Send its whole group a signal, while the process itself has not ended."""
        if not self.ended:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill_below(self) -> None:
        """Kill the groups of its children and let it see them end; kill it if it has none.

        For a process that only waits for another (`nsenter`, bubblewrap): killed together with its child, it would
        leave the corpse to the machine's first process, and a sandbox is not gone before its corpses are.
        """
        if self.ended:
            return
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)  # it starts no more children
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        children: list[int] = []
        with suppress(FileNotFoundError):  # a kernel without that file: its child is bound to end with it
            children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()]
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        os.kill(pid, signal.SIGCONT if children else signal.SIGKILL)

    @property
    def is_open(self) -> bool:
        """Whether somebody, it or one whom it left behind, may still write."""
        return self.stdout.is_open or self.stderr.is_open

    def close(self) -> None:
        """Read no more of what those write whom it left behind."""
        self.stdout.close()
        self.stderr.close()

    def _reap(self) -> None:
        if self._process.poll() is None:
            return
        self._loop.remove_reader(self._watch)
        os.close(self._watch)
        self.stdout.finish()
        self.stderr.finish()
        self._ended.set()
        self._turned.set()

    def _start(self) -> None:
        self.started = True
        self._turned.set()


def _pipe() -> tuple[int, int]:
    try:
        return os.pipe()
    except OSError as error:
        raise RuntimeFailedError(f"no pipe to a command: {error.strerror}") from error


async def call(command: Sequence[str], *, env: Mapping[str, str], descriptors: Sequence[int] = ()) -> tuple[int, str]:
    """Run a tool of the host for ourselves: its exit code and the end of its error output.

    When cancelled it is killed, and has ended before this returns.
    """
    process = HostProcess(command, env=env, descriptors=descriptors)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.signal_group(signal.SIGKILL)
        await process.wait()
        raise
    finally:
        process.close()
    return code, process.stderr.data.decode(errors="replace").strip()


def _failure(error: OSError, program: str) -> RuntimeFailedError:
    if error.errno == errno.E2BIG:
        return CommandTooLongError(
            "the command was not started: one argument is longer than 128 KiB, or all arguments and variables together "
            "are longer than the system takes; write the text to a file and pass its name"
        )
    return RuntimeFailedError(f"the command was not started: {program}: {error.strerror}")
