"""Rollbook's processes as a test starts, watches and kills them, and what their ledger says afterwards.

Everything a deployment started, and whatever those processes started, carries a mark of its own in its environment.
That is how runners are found, how nothing outlives a test, and how a test sees that nothing was left behind.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec

from rollbook.ledger.audit import audit
from rollbook.ledger.postgres.store import WRITE_LOCK
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.urls import POSTGRES, parse_url
from rollbook.settings import ApiSettings, SchedulerSettings
from rollbook_client import RolloutClient
from tests.support.databases import NewLedger, secret_key_of
from tests.support.launching import Launched, launch
from tests.support.ledger import ledger_path
from tests.support.sql import Shell, shell

LIMIT_SEC = 60.0
LOOK_PAUSE_SEC = 0.02
MARK_VARIABLE = "TEST_DEPLOYMENT"
ENTRYPOINTS = Path(__file__).with_name("entrypoints")
CHOSEN = ENTRYPOINTS / "chosen.py"
QUEUE = "chosen"
CHAT_URL = "http://127.0.0.1:9/v1"
COMMAND_LINE_MODULE = "rollbook"
API_MODULE = "rollbook.server"
SCHEDULER_MODULE = "rollbook.scheduler"
RUNNER_MODULE = "rollbook.scheduler.runner"
PYTHONS_PATH_VARIABLE = "PYTHONPATH"

BOUND_TO_ITS_PARENT = ("setpriv", "--pdeathsig", "KILL")
"""Becomes the program that follows, which the kernel ends with its parent: also where the tests were killed themselves.
"""

API = ApiSettings(
    database_url="", queue=QUEUE, result_wait_timeout_sec=0.5, polling_lease_timeout_sec=30.0, max_attempts=3
)
SCHEDULER = SchedulerSettings(
    database_url="",
    entrypoint=str(CHOSEN),
    queues=(QUEUE,),
    # Short, so that a death is noticed within a test's patience; long enough for a busy machine to beat in time.
    beat_interval_sec=0.3,
    dead_after_sec=2.0,
    beat_lost_after_sec=1.5,
    sweep_interval_sec=0.1,
    drain_sec=5.0,
    clean_up_sec=10.0,
    force_sec=5.0,
)


async def until[T](look: Callable[[], T], *, what: str, limit_sec: float = LIMIT_SEC) -> T:
    """Return what ``look`` gives once that is true. Conditions in other processes send no signal, so it looks again."""
    deadline = time.monotonic() + limit_sec
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_sec:g} s: {what}")
        await asyncio.sleep(LOOK_PAUSE_SEC)
    return found


def url_of(port: int) -> str:
    """The URL of an API on a port of this machine."""
    return f"http://127.0.0.1:{port}"


PORTS = range(20_000, 32_000)
"""For servers of tests."""


def free_port() -> int:
    """A port that nobody has, below those that the system gives to connections: they would take it meanwhile."""
    while True:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def folder_first(name: str) -> str:
    """A search path that begins with a folder of this one and goes on as ours does: Python runs its `sitecustomize`."""
    folder = str(Path(__file__).with_name(name))
    return os.pathsep.join([folder, *filter(None, [os.environ.get(PYTHONS_PATH_VARIABLE)])])


class Started:
    """A process of a deployment, with what it and its children wrote.

    ``module`` is what it runs, if that cannot be seen in its command line.
    """

    def __init__(self, process: subprocess.Popen[bytes] | Launched, log: Path, *, module: str = "") -> None:
        self._process = process
        self._log = log
        self.module = module

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self._process.kill()
        self._process.wait(LIMIT_SEC)

    async def end(self) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.to_thread(self._process.wait, LIMIT_SEC)

    async def stop(self) -> int:
        """Ask it to end; its exit code."""
        self.send(signal.SIGTERM)
        return await self.end()


class Deployment:
    """Processes over one ledger in a folder of their own; close it to end all of them."""

    def __init__(self, folder: Path, database_url: str | None = None, **variables: str) -> None:
        """Without a URL the ledger is a file that the processes make."""
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.database_url = database_url or f"sqlite:///{folder}/ledger/ledger.sqlite3"
        self.on_postgres = parse_url(self.database_url).get_backend_name() == POSTGRES
        self.port = free_port()
        self.url = url_of(self.port)
        self._mark = f"{MARK_VARIABLE}={uuid4().hex}"
        self._variables = {**secret_key_of(self.database_url), **variables}
        self._reading = ExitStack()
        self._shell: Shell | None = None
        self.started: list[Started] = []

    # Starting and ending

    def api(self, *, variables: Mapping[str, str] | None = None, **changes: Any) -> Started:
        """An API process of its own, on this deployment's port unless the changes name another."""
        settings = msgspec.structs.replace(API, **{"database_url": self.database_url, "port": self.port, **changes})
        text = msgspec.json.encode(settings).decode()
        return self.launch("api", API_MODULE, ROLLBOOK_API_SETTINGS=text, **(variables or {}))

    def scheduler(self, *, variables: Mapping[str, str] | None = None, **changes: Any) -> Started:
        """A scheduler process of its own, with its runners."""
        settings = msgspec.structs.replace(SCHEDULER, **{"database_url": self.database_url, **changes})
        text = msgspec.json.encode(settings).decode()
        return self.launch("scheduler", SCHEDULER_MODULE, ROLLBOOK_SCHEDULER_SETTINGS=text, **(variables or {}))

    def command(self, name: str, *arguments: str) -> Started:
        """`rollbook NAME …` over this deployment's ledger."""
        return self.launch(name, COMMAND_LINE_MODULE, name, *arguments, ROLLBOOK_DATABASE_URL=self.database_url)

    def serve(self, *options: str, entrypoint: Path = CHOSEN, program: Sequence[str] = ()) -> Started:
        """`rollbook serve` over this deployment's ledger and port; `program` may be one that begins otherwise."""
        where = ("--database-url", self.database_url, "--port", str(self.port))
        arguments = ("serve", str(entrypoint), *where, *options)
        if program:
            return self.start("serve", *program, *arguments)
        return self.launch("serve", COMMAND_LINE_MODULE, *arguments)

    def embedded(self, **options: Any) -> Started:
        """`create_rollout_server` with these options, in a process of its own."""
        options = {"result_wait_timeout_sec": 0.5, "polling_lease_timeout_sec": 30.0, **options}
        application = str(ENTRYPOINTS / "embedded_app.py")
        return self.start("embedded", application, str(self.port), self.database_url, json.dumps(options))

    def start(self, name: str, *arguments: str, **variables: str) -> Started:
        """A Python process with these arguments; its output goes to a file."""
        log = self._next_log(name)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*BOUND_TO_ITS_PARENT, sys.executable, *arguments],
                cwd=self.folder,
                env=self._environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        return self._note(Started(process, log))

    def launch(self, name: str, module: str, *arguments: str, **variables: str) -> Started:
        """The same of one of Rollbook's modules, which begins with everything imported where Python needs no start."""
        if PYTHONS_PATH_VARIABLE in {*variables, *self._variables}:
            return self.start(name, "-m", module, *arguments, **variables)
        log = self._next_log(name)
        environment = self._environment(variables)
        with log.open("wb") as output:
            process = launch(module, arguments, variables=environment, folder=self.folder, output=output)
        return self._note(Started(process, log, module=module))

    def _next_log(self, name: str) -> Path:
        return self.logs / f"{len(self.started)}-{name}.log"

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ROLLBOOK_", "OSMOSIS_"))}
        marked = dict([self._mark.split("=")])
        return {**inherited, **self._variables, **variables, **marked}

    def _note(self, started: Started) -> Started:
        self.started.append(started)
        return started

    def pids(self, module: str = "") -> list[int]:
        """Processes of this deployment that run, whoever started them; ``module`` is the one they run."""
        launched = [one.pid for one in self.started if one.module and module in ("", one.module) and not one.ended]
        running = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [*launched, *(pid for pid in running if self._is_ours(pid, module))]

    def _is_ours(self, pid: int, module: str) -> bool:
        try:
            if self._mark.encode() not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return False
            return not module or module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or belongs to somebody else
            return False

    def kill(self, module: str = "") -> None:
        """SIGKILL to all processes that run the module; without one, to everything."""
        for pid in self.pids(module):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Until they are gone they hold their ports, and one that is launched next wants its port at once.
        for started in self.started:
            if started.module and module in ("", started.module):
                started.kill()

    def close(self) -> None:
        """Leave no process of this deployment."""
        deadline = time.monotonic() + LIMIT_SEC
        while self.pids():
            assert time.monotonic() < deadline, "processes of a test cannot be killed"
            self.kill()
        for started in self.started:
            started.kill()
        self._reading.close()

    # Asking

    @asynccontextmanager
    async def client(self, url: str | None = None, **options: Any) -> AsyncIterator[RolloutClient]:
        """A client; what is done with it must be over within the limit."""
        async with asyncio.timeout(LIMIT_SEC), RolloutClient(url=url or self.url, **options) as client:
            yield client

    async def answering(self, url: str | None = None, *, api_key: str | None = None) -> dict[str, Any]:
        """The health object, once there is an API that answers."""
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        # Nothing is encrypted here, and reading the authorities' certificates takes longer than the asking.
        async with httpx.AsyncClient(headers=headers, verify=False) as http:
            deadline = time.monotonic() + LIMIT_SEC
            while True:
                with suppress(httpx.TransportError):
                    answer = await http.get(f"{url or self.url}/health")
                    if answer.status_code == 200:
                        health: dict[str, Any] = answer.json()
                        return health
                failed = next((one for one in self.started if one.ended), None)
                assert time.monotonic() < deadline, f"no API answers; {failed and failed.output}"
                await asyncio.sleep(LOOK_PAUSE_SEC)

    async def runners(self, count: int = 1) -> list[int]:
        """The process ids of the runners, once there are so many."""

        def enough() -> list[int]:
            pids = self.pids(RUNNER_MODULE)
            return pids if len(pids) >= count else []

        return await until(enough, what=f"{count} runners")

    @property
    def output(self) -> str:
        """What all processes wrote."""
        return "".join(started.output for started in self.started)

    # The ledger

    def rows(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if not self.on_postgres:
            with shell(self.database_url) as opened:
                return opened.rows(text, parameters)
        # Kept open: connecting anew for each look would cost more than the looking.
        if self._shell is None:
            self._shell = self._reading.enter_context(shell(self.database_url))
        return self._shell.rows(text, parameters)

    def number(self, text: str, *parameters: Any) -> Any:
        """The one value that a query answers."""
        return self.rows(text, *parameters)[0][0]

    @property
    def admitted(self) -> int:
        found: int = self.number("SELECT count(*) FROM rollouts")
        return found

    @property
    def finished(self) -> int:
        found: int = self.number("SELECT count(*) FROM rollouts WHERE finished_at IS NOT NULL")
        return found

    def statuses(self) -> dict[str, int]:
        return dict(self.rows("SELECT status, count(*) FROM rollouts GROUP BY status"))

    def check_ledger(self) -> None:
        """One end for each rollout that is over, attempts one after the other, rows as the events say, hashes right."""
        ends = self.rows(
            "SELECT r.rollout_id, count(e.position), r.finished_at IS NOT NULL FROM rollouts r"
            " LEFT JOIN events e ON e.number = r.number AND e.type = 'rollout_finished'"
            " GROUP BY r.number, r.rollout_id, r.finished_at"
        )
        assert [row for row in ends if row[1] != row[2]] == []
        last: dict[str, str] = {}
        for rollout_id, kind in self.rows(
            "SELECT r.rollout_id, e.type FROM events e JOIN rollouts r ON r.number = e.number"
            " WHERE e.type IN ('attempt_started', 'attempt_ended') ORDER BY e.number, e.seq"
        ):
            assert last.get(rollout_id, "attempt_ended") != kind, f"attempts of {rollout_id} overlap"
            last[rollout_id] = kind
        assert verify_replay(self.database_url) == []
        assert audit(self.database_url) == []

    async def stop_outside_of_writing(self, process: Started) -> None:
        """SIGSTOP, but never while it holds the writers' lock: stopped there, it would hold up all the others too."""

        def stopped() -> bool:
            process.send(signal.SIGSTOP)
            if self._lock_is_free():
                return True
            process.send(signal.SIGCONT)
            return False

        await until(stopped, what="a moment in which the process writes nothing")

    def _lock_is_free(self) -> bool:
        if self.on_postgres:
            return bool(self.number("SELECT pg_try_advisory_xact_lock(?)", WRITE_LOCK))
        path = ledger_path(self.database_url)
        with path.with_name(path.name + ".lock").open("rb") as lock:
            for _ in range(100):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.sched_yield()
                    continue
                return True
        return False


@contextmanager
def deployed(database: str, new_ledger: NewLedger, folder: Path, **variables: str) -> Iterator[Deployment]:
    """A deployment over an empty ledger of that database for a block; its files lie in the folder."""
    with ExitStack() as stack:
        ledger = folder / "ledger"
        ledger.mkdir()
        deployment = Deployment(folder, stack.enter_context(new_ledger(database, ledger)), **variables)
        stack.callback(deployment.close)
        yield deployment
