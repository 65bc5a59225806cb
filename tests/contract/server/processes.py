"""An API as the process that `rollbook serve` starts, and plain sockets to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import msgspec

from rollbook.settings import ApiSettings
from tests.contract.server.support import LIMIT_SEC, LOOK_SEC, QUEUE
from tests.support.databases import secret_key_of


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ApiProcess:
    """A running API process."""

    def __init__(self, settings: ApiSettings, child: subprocess.Popen[str], lifeline_fd: int) -> None:
        self.settings = settings
        self.child = child
        self.lifeline_fd = lifeline_fd
        self.url = f"http://127.0.0.1:{settings.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.settings.port), timeout=LIMIT_SEC)

    def wait(self) -> int:
        """The exit code, once the process has ended."""
        return self.child.wait(LIMIT_SEC)

    def await_ready(self) -> None:
        """Return once it answers; fail with its own words if it ends instead."""
        deadline = time.monotonic() + LIMIT_SEC
        # Nothing is encrypted here, and reading the authorities' certificates takes longer than the asking.
        with httpx.Client(trust_env=False, verify=False) as http:
            while True:
                try:
                    http.get(f"{self.url}/health")
                    return
                except httpx.TransportError:
                    if self.child.poll() is not None:
                        raise AssertionError(f"the API ended: {self.child.communicate()[1]}") from None
                    assert time.monotonic() < deadline, "the API does not answer"
                    # Looking without a pause would take from its start the processor that it needs.
                    with suppress(subprocess.TimeoutExpired):
                        self.child.wait(LOOK_SEC)


def start(database_url: str, *program: str, **changes: Any) -> ApiProcess:
    """Start an API process on a ledger, with a lifeline to this one; `program` runs instead of the server's module."""
    settings = ApiSettings(database_url=database_url, queue=QUEUE, port=free_port())
    settings = msgspec.structs.replace(settings, **changes)
    read_end, write_end = os.pipe()
    environment = {
        **os.environ,
        **secret_key_of(database_url),
        "ROLLBOOK_API_SETTINGS": msgspec.json.encode(settings).decode(),
        "ROLLBOOK_LIFELINE_FD": str(read_end),
    }
    child = subprocess.Popen(
        [sys.executable, *(program or ("-m", "rollbook.server"))],
        env=environment,
        pass_fds=[read_end],
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(read_end)
    return ApiProcess(settings, child, write_end)


@contextmanager
def running(database_url: str, *program: str, **changes: Any) -> Iterator[ApiProcess]:
    """An API process that answers; killed at the end if it still runs."""
    process = start(database_url, *program, **changes)
    try:
        process.await_ready()
        yield process
    finally:
        end(process)


def end(process: ApiProcess) -> str:
    """Kill it if it still runs; what it wrote to stderr."""
    if process.child.poll() is None:
        process.child.kill()
    _, errors = process.child.communicate(timeout=LIMIT_SEC)
    os.close(process.lifeline_fd)
    return errors


def read_response(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next response; the body by its content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part:
            raise ConnectionError(f"closed after {data!r}")
        data += part
    head, body = data.split(b"\r\n\r\n", 1)
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    length = int(headers.get("content-length", 0))
    while len(body) < length:
        part = connection.recv(65_536)
        if not part:
            raise ConnectionError("closed within a body")
        body += part
    return int(lines[0].split(" ")[1]), headers, body
