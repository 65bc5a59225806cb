"""Real PostgreSQL for tests: one server for the whole run, databases for each test, and servers that a test may break.

`ROLLBOOK_TEST_POSTGRES_URL` names a server to use, with a role that may create databases. Without it the first test
that needs one starts a server from the wheel in a folder of its own; all workers of the run share it, and it ends with
the last of them, however they end.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from uuid import uuid4

import msgspec
from sqlalchemy.engine import make_url

from tests.support.postgres_server import PostgresServer, PrivateServer, use
from tests.support.postgres_statements import ServerConnection, execute

__all__ = ["PostgresServer", "PrivateServer", "execute", "fresh_database", "private_server", "shared_server"]

# Read when tests are collected: while one runs, the environment is free of our variables.
_SERVER_URL = os.environ.get("ROLLBOOK_TEST_POSTGRES_URL", "")

# What it holds is gone after the run, so nothing waits for a disk. A new database has three hundred files: beside other
# programs that write, a disk takes a third of a second for them, and memory a fiftieth.
_SHARED_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
_MEMORY = Path("/dev/shm")
_MEMORY_MIN_BYTES = 2 * 1024**3


class _Addresses(msgspec.Struct):
    """What the worker that started the shared server tells the others."""

    unix_socket: str
    tcp: str


@cache
def shared_server() -> PostgresServer:
    """The server of this run. Tests leave it running; `private_server` is for those that do not."""
    if _SERVER_URL:
        url = make_url(_SERVER_URL).set(drivername="postgresql")
        # Any release has this locale, and compares as C.UTF-8 does.
        return PostgresServer(url, url, for_new="ENCODING 'UTF8' LOCALE 'C'")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
    folder = memory_or_disk() / f"rollbook-pg-{run[:16]}"
    _KEPT.append(_hold(folder))
    with (folder / "start.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            addresses = _started(folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
    return PostgresServer(make_url(addresses.unix_socket), make_url(addresses.tcp), for_copies="STRATEGY FILE_COPY")


@contextmanager
def fresh_database(template: str | None = None) -> Iterator[str]:
    """The URL of a new database of the shared server, dropped afterwards; empty, or a copy of the template.

    The template is named by its URL or its name, and nobody may be connected to it. Text is UTF-8 and compares
    bytewise.
    """
    server = shared_server()
    name = f"rollbook_test_{uuid4().hex}"
    source, options = ("template0", server.for_new) if template is None else (_name(template), server.for_copies)
    connection = _server_connection()
    connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}" {options}')
    try:
        yield server.url(name)
    finally:
        connection.drop_database(name)


@cache
def _server_connection() -> ServerConnection:
    return ServerConnection(shared_server().url())


@contextmanager
def private_server(**settings: str) -> Iterator[PrivateServer]:
    """A started server of one test alone, durable unless the settings say otherwise; removed afterwards."""
    # A short name: a socket's path may have about a hundred bytes.
    with TemporaryDirectory(prefix="rollbook-pg-") as name, use(Path(name)):
        server = PrivateServer(Path(name), settings)
        try:
            server.start()
            yield server
        finally:
            server.close()


_KEPT: list[IO[bytes] | PrivateServer] = []
"""What lives as long as this process: the hold on the shared server, which runs meanwhile, and its starter."""


def memory_or_disk() -> Path:
    """Where files go that nobody needs after the run: into memory, where there is enough of it and programs may run.

    All workers of a run must choose alike, so nothing counts that changes meanwhile.
    """
    if _MEMORY.is_dir():
        memory = os.statvfs(_MEMORY)
        if memory.f_blocks * memory.f_frsize >= _MEMORY_MIN_BYTES and not memory.f_flag & os.ST_NOEXEC:
            return _MEMORY
    return Path(tempfile.gettempdir())


def _hold(folder: Path) -> IO[bytes]:
    """A hold on the run's folder, made where it is not there; never on one that is just being removed."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            users = use(folder)
        except FileNotFoundError:
            continue
        if _is_there(users, folder):
            return users
        users.close()


def _is_there(users: IO[bytes], folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(users.fileno()), (folder / "users.lock").stat())
    except FileNotFoundError:
        return False


def _started(folder: Path) -> _Addresses:
    """The addresses of the server that runs there, started if it is not. The caller holds the lock for that."""
    told = folder / "addresses.json"
    if told.exists():
        return msgspec.json.decode(told.read_bytes(), type=_Addresses)
    server = PrivateServer(folder, _SHARED_SETTINGS)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    _KEPT.append(server)
    addresses = _Addresses(*(url.render_as_string(hide_password=False) for url in server.leave()))
    told.touch(mode=0o600)
    told.write_bytes(msgspec.json.encode(addresses))
    return addresses


def _name(template: str) -> str:
    return make_url(template).database or "" if "://" in template else template
