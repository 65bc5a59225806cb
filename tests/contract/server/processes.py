"""An API as the process that `rollbook serve` starts, and plain sockets to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import httpx
import msgspec

from rollbook.settings import API_SETTINGS_VARIABLE, ApiSettings
from rollbook.supervisor import LIFELINE_VARIABLE
from tests.contract.server.support import LIMIT_SEC, LOOK_SEC, QUEUE
from tests.support.databases import secret_key_of
from tests.support.launching import Launched, launch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ApiProcess:
    """A running API process."""

    def __init__(
        self, settings: ApiSettings, child: subprocess.Popen[bytes] | Launched, lifeline_fd: int, *, output: IO[bytes]
    ) -> None:
        self.settings = settings
        self.child = child
        self.lifeline_fd = lifeline_fd
        self.url = f"http://127.0.0.1:{settings.port}"
        self._output = output

    def written(self) -> str:
        """What it has written so far; where it goes on is left to it."""
        file = self._output.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def close(self) -> None:
        """Let go of its lifeline and its output."""
        os.close(self.lifeline_fd)
        self._output.close()

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
                        raise AssertionError(f"the API ended: {self.written()}") from None
                    assert time.monotonic() < deadline, "the API does not answer"
                    # Looking without a pause would take from its start the processor that it needs.
                    with suppress(subprocess.TimeoutExpired):
                        self.child.wait(LOOK_SEC)


def start(database_url: str, *program: str, **changes: Any) -> ApiProcess:
    """Start an API process on a ledger, with a lifeline to this one; `program` runs instead of the server's module."""
    settings = ApiSettings(database_url=database_url, queue=QUEUE, port=free_port())
    settings = msgspec.structs.replace(settings, **changes)
    variables = {
        **os.environ,
        **secret_key_of(database_url),
        API_SETTINGS_VARIABLE: msgspec.json.encode(settings).decode(),
    }
    read_end, write_end = os.pipe()
    output = TemporaryFile()  # noqa: SIM115 - it is open as long as the process is
    child = (
        subprocess.Popen(
            [sys.executable, *program],
            env={**variables, LIFELINE_VARIABLE: str(read_end)},
            pass_fds=[read_end],
            stdout=output,
            stderr=output,
        )
        if program
        else launch(
            "rollbook.server",
            variables=variables,
            folder=Path.cwd(),
            output=output,
            passed={LIFELINE_VARIABLE: read_end},
        )
    )
    os.close(read_end)
    return ApiProcess(settings, child, write_end, output=output)


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
    """Kill it if it still runs; what it wrote."""
    process.child.kill()
    process.wait()
    written = process.written()
    process.close()
    return written


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
