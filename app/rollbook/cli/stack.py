"""One API and one scheduler over one SQLite ledger, as supervised children: what `serve` and the demo run.

The sockets are made here, in the parent, and live as long as it does. A child that died and was started again has
the same listening socket and the same hint socket: clients that connect meanwhile wait instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
import time
from collections.abc import Awaitable, Callable

import msgspec

from rollbook.ledger.database import database_of
from rollbook.ledger.keyring import process_keys
from rollbook.ledger.schema import check_database, upgrade
from rollbook.ledger.urls import parse_url
from rollbook.settings import (
    API_SETTINGS_VARIABLE,
    HINT_VARIABLE,
    LISTEN_VARIABLE,
    SCHEDULER_SETTINGS_VARIABLE,
    ApiSettings,
    SchedulerSettings,
)
from rollbook.supervisor import ChildSpec, Supervisor

from .failures import CommandError

SCHEDULER = "scheduler"
"""The name of the child that is one."""

BACKLOG = 2_048
BIND_LIMIT_SEC = 1.0
BIND_PAUSE_SEC = 0.05
API_STOP_LIMIT_SEC = 30.0
STOP_MARGIN_SEC = 15.0
PROBE_LIMIT_SEC = 5.0
PROBE_PAUSE_SEC = 0.05


def prepare(database_url: str) -> None:
    """Bring the ledger to the current schema and make sure of the secret key, before any child starts.

    Raises:
        DatabaseUrlError, LedgerUnavailable, SchemaError, SecretKeyError: no child could work either.
    """
    database = database_of(parse_url(database_url))
    if database.capabilities.migrates_at_start:
        upgrade(database.url)
    check_database(database)
    process_keys(database)
    database.check_writable()  # told now, once, and not by every child again and again


def listen(
    host: str, port: int, *, limit_sec: float = BIND_LIMIT_SEC, options: tuple[str, str] = ("--port", "--host")
) -> socket.socket:
    """A listening socket; port 0 takes a free one. ``options`` are those that named the port and the address.

    A port that is taken is tried for ``limit_sec``: the API of a `serve` that was killed a moment ago is about to
    end and give it back.

    Raises:
        CommandError: the address cannot be listened on.
    """
    deadline = time.monotonic() + limit_sec
    while True:
        try:
            return _bound(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(BIND_PAUSE_SEC)
                continue
            raise CommandError(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another {' or '.join(options)}"
            ) from error


def check_metrics_address(settings: SchedulerSettings, options: tuple[str, str]) -> None:
    """Make sure that the scheduler can tell its metrics where it should, before it starts.

    It listens itself: while it is away, Prometheus is to be refused and not to wait for it.

    Raises:
        CommandError: the address cannot be listened on; ``options`` are those that named its port and host.
    """
    if settings.metrics_port is not None:
        listen(settings.metrics_host, settings.metrics_port, options=options).close()


def _bound(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def base_url(listener: socket.socket) -> str:
    """The URL of a listening socket, as bound."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def ready_line(listener: socket.socket, settings: ApiSettings) -> str:
    """What an operator is told when requests are answered."""
    place = database_of(parse_url(settings.database_url)).describe()
    return f"listening on {base_url(listener)} (queue {settings.queue}, ledger {place})"


async def answering(listener: socket.socket) -> None:
    """Return once ``GET /health`` is answered, whatever the answer (it may ask for a key)."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PROBE_LIMIT_SEC):
                if await _probe(host, port):
                    return
        await asyncio.sleep(PROBE_PAUSE_SEC)


async def _probe(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return (await reader.readline()).startswith(b"HTTP/1.")
    finally:
        writer.close()


def module_command(name: str) -> tuple[str, ...]:
    """The command line of a module of ours. ``-P``: a file in the current folder must not pass for a library."""
    return (sys.executable, "-P", "-m", name)


def variables(name: str, settings: msgspec.Struct) -> dict[str, str]:
    """Settings as an environment variable."""
    return {name: msgspec.json.encode(settings).decode()}


def scheduler_child(settings: SchedulerSettings, *, hints: int | None = None) -> ChildSpec:
    """A scheduler as a child; ``hints`` is a socket to the other processes of the ledger."""
    found = {} if hints is None else {HINT_VARIABLE: str(hints)}
    return ChildSpec(
        name=SCHEDULER,
        command=module_command("rollbook.scheduler"),
        variables={**variables(SCHEDULER_SETTINGS_VARIABLE, settings), **found},
        descriptors=() if hints is None else (hints,),
        stop_limit_sec=settings.drain_sec + settings.clean_up_sec + settings.force_sec + STOP_MARGIN_SEC,
    )


class Stack:
    """The children over sockets of their own; `run` it once, on the loop that is running."""

    def __init__(self, api: ApiSettings, scheduler: SchedulerSettings) -> None:
        self._settings = api
        self._listener = listen(api.host, api.port)
        self._hints = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.url = base_url(self._listener)
        self.supervisor = Supervisor([self._api(api), scheduler_child(scheduler, hints=self._hints[1].fileno())])

    def _api(self, settings: ApiSettings) -> ChildSpec:
        listener, hints = self._listener.fileno(), self._hints[0].fileno()
        return ChildSpec(
            name="api",
            command=module_command("rollbook.server"),
            variables={
                **variables(API_SETTINGS_VARIABLE, settings),
                LISTEN_VARIABLE: str(listener),
                HINT_VARIABLE: str(hints),
            },
            descriptors=(listener, hints),
            stop_limit_sec=API_STOP_LIMIT_SEC,
        )

    def stop(self) -> None:
        """Take no more connections and ask the children to end.

        The parent's hold on the listening socket goes first: else clients would wait in its queue for an API that
        does not come back.
        """
        self._listener.close()
        self.supervisor.stop()

    async def run(self, *, on_ready: Callable[[str], None], loaded: Callable[[], Awaitable[None]] | None = None) -> int:
        """Run until `stop` or until a child gives up; the exit code.

        ``on_ready`` is told a line for the operator once requests are answered and ``loaded()``, if given, has
        returned.
        """
        line = ready_line(self._listener, self._settings)
        announcing = asyncio.create_task(self._announce(line, on_ready, loaded), name="announce")
        try:
            return await self.supervisor.run()
        finally:
            announcing.cancel()
            self.close()

    async def _announce(
        self, line: str, on_ready: Callable[[str], None], loaded: Callable[[], Awaitable[None]] | None
    ) -> None:
        await answering(self._listener)
        if loaded is not None:
            await loaded()
        on_ready(line)

    def close(self) -> None:
        """Close the sockets; harmless when repeated."""
        self._listener.close()
        for end in self._hints:
            end.close()
