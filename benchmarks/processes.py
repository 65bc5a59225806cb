"""Servers as processes: start them, wait until they answer, read their CPU and memory from /proc, end them all."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_SEC = 60.0
STOP_LIMIT_SEC = 30.0
PROBE_PAUSE_SEC = 0.05
SAMPLE_PAUSE_SEC = 0.25
_TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")

_ROLES = (
    ("rollbook.scheduler.runner", "runner"),
    ("rollbook.scheduler", "scheduler"),
    ("rollbook.server", "api"),
    ("rollbook", "supervisor"),
)


class Process(msgspec.Struct, frozen=True):
    """A process of a server, told from a later one of the same id by its start time (ticks since boot)."""

    pid: int
    started: int
    role: str


class ServerDied(RuntimeError):
    """A server ended, or did not answer in time; the message ends with what it wrote."""


def shared_folder() -> Path:
    """The folder with the reference's driver and servers: `ROLLBOOK_SHARED`, else beside this repository.

    Raises:
        FileNotFoundError: it is not there.
    """
    folder = Path(os.environ.get("ROLLBOOK_SHARED") or ROOT.parent / "shared").absolute()
    if not (folder / "tools" / "drive.py").is_file():
        raise FileNotFoundError(
            f"{folder} has no tools/drive.py; name the folder that has it by the variable ROLLBOOK_SHARED"
        )
    return folder


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def rollbook(*arguments: str) -> tuple[str, ...]:
    """The command line of `rollbook`, with this interpreter."""
    return (sys.executable, "-m", "rollbook", *arguments)


def _answers(health: dict[str, object]) -> bool:
    return bool(health)


class Server:
    """A server that is started by a command and answers a probe on ``port`` once it is ready. A context."""

    HOST = "127.0.0.1"

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int,
        folder: Path,
        probe: str = "/health",
        ready: Callable[[dict[str, object]], bool] = _answers,
    ) -> None:
        """``folder`` is where it runs and where its output goes; ``ready`` judges the body that ``probe`` answers."""
        self.port = port
        self.url = f"http://{self.HOST}:{port}"
        self._log = folder / f"server-{port}.log"
        self._command = command
        self._folder = folder
        self._probe = probe
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a session of its own would get a share of the processors of its own
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process that was started."""
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[Process]:
        """The started process and all its descendants."""
        return tree(self.pid)

    def get(self, path: str) -> dict[str, object] | None:
        """The JSON object that the path is answered with; None while nobody answers, or not with 200."""
        connection = http.client.HTTPConnection(self.HOST, self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return msgspec.json.decode(body, type=dict[str, object]) if answer.status == 200 else None

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_LIMIT_SEC
        while (answer := self.get(self._probe)) is None or not self._ready(answer):
            if self._process.poll() is not None:
                raise ServerDied(
                    f"{' '.join(self._command)} ended with code {self._process.returncode}:\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerDied(
                    f"{' '.join(self._command)} did not answer within {START_LIMIT_SEC:g} s:\n{self.tail()}"
                )
            time.sleep(PROBE_PAUSE_SEC)

    def tail(self) -> str:
        """The last of what the server wrote."""
        return self._log.read_text(errors="replace")[-2_000:]

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left after the limit; returns when no process of the server exists."""
        if self._process is None:
            return
        members = self.processes()
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_SEC)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for member in members:
            _end(member)
        self._process = None


def _end(process: Process) -> None:
    """Kill a process that still runs, and wait until it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if exists(process):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], STOP_LIMIT_SEC)
    finally:
        os.close(descriptor)


def tree(pid: int) -> list[Process]:
    """A process and its descendants, as they are now."""
    children: dict[int, list[Process]] = {}
    found: list[Process] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            process = Process(int(entry.name), int(fields[19]), _role(entry))
            children.setdefault(int(fields[1]), []).append(process)
            if process.pid == pid:
                found.append(process)
    for process in found:  # grows while it is walked
        found.extend(children.get(process.pid, ()))
    return found


def exists(process: Process) -> bool:
    """Whether it still runs (a zombie does not)."""
    fields = _stat(process.pid)
    return fields is not None and int(fields[19]) == process.started and fields[0] != "Z"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def _role(entry: Path) -> str:
    try:
        words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    for module, role in _ROLES:
        if module in words or any(word.endswith(f"/{module}") for word in words[:2]):
            return role
    return "server"


def cpu_sec(process: Process) -> float:
    """User and system seconds so far; 0 for a process that is gone."""
    fields = _stat(process.pid)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS_PER_SEC


def whole_cpu_sec(pid: int) -> float:
    """User and system seconds so far of a process, its descendants, and those of its children that have ended."""
    ended = _stat(pid)
    waited = 0.0 if ended is None else (int(ended[13]) + int(ended[14])) / _TICKS_PER_SEC
    return waited + sum(cpu_sec(process) for process in tree(pid))


def memory_bytes(process: Process) -> int:
    """Proportional share (PSS): pages shared with others count by parts; 0 for a process that is gone."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def open_files(process: Process, path: Path) -> int:
    """How many descriptors of the process are this file or lie beside it with its name as a prefix."""
    count = 0
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(descriptor.readlink()).startswith(str(path))
    return count


class Usage(msgspec.Struct):
    """What processes used while they were watched."""

    cpu_sec: dict[str, float] = {}
    """CPU seconds by role."""
    peak_bytes: int = 0
    """The highest sampled sum of their memory."""


@contextlib.contextmanager
def watched(processes: Sequence[Process]) -> Iterator[Usage]:
    """CPU by role and peak memory of the processes over the block; complete when the block is left."""
    usage = Usage()
    over = threading.Event()

    def sample() -> None:
        while True:
            usage.peak_bytes = max(usage.peak_bytes, sum(memory_bytes(process) for process in processes))
            if over.wait(SAMPLE_PAUSE_SEC):
                return

    before = {process.pid: cpu_sec(process) for process in processes}
    sampler = threading.Thread(target=sample, name="memory-sampler")
    sampler.start()
    try:
        yield usage
    finally:
        over.set()
        sampler.join()
        for process in processes:
            spent = cpu_sec(process) - before[process.pid]
            usage.cpu_sec[process.role] = usage.cpu_sec.get(process.role, 0.0) + spent
