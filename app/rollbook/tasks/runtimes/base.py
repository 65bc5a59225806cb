"""What a runtime is: a place where the programs of one rollout run, with files, a network policy and an end."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from rollbook.sdk.values import shown
from rollbook.tasks.data import NetworkPolicy, Resources

__all__ = ["READ_LIMIT_BYTES", "Completed", "Runtime", "made_by"]

READ_LIMIT_BYTES = 64 * 1024 * 1024
"""The largest file that `Runtime.read` takes into memory, unless it is told otherwise."""


class Completed(Struct, frozen=True):
    """How a command ended."""

    exit_code: int
    """128 + n where signal n ended it, 127 where there is no such program, 126 where it cannot be started, as shells
    have it."""
    stdout: bytes = b""
    """The end of it, up to the runtime's `output_limit_bytes`."""
    stderr: bytes = b""
    timed_out: bool = False
    """Whether it was ended because `timeout_sec` was over."""
    stdout_dropped: int = 0
    """How many bytes came before those that were kept."""
    stderr_dropped: int = 0


class Runtime(ABC):
    """A place for programs, for one rollout or for several that borrow it. Started once, stopped once.

    Whoever made it stops it. Everybody else gets `borrowed(runtime)`, which cannot.
    """

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether `stop` was called: nothing runs in it any more, and nothing can be started."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The working folder as the host sees it. Programs put into it what they like, symbolic links too: use `read`
        and `write`. Raises RuntimeStoppedError before `start` and after `stop`."""

    @property
    @abstractmethod
    def workdir(self) -> str:
        """The working folder as programs see it."""

    @abstractmethod
    async def start(self) -> None:
        """Make it ready. Where that fails or is cancelled, what was made of it is gone again.

        Raises:
            RuntimeUnavailableError: this machine cannot give such a runtime.
            RuntimeFailedError: it did not come up.
            RuntimeStoppedError: it was stopped before.
        """

    async def try_out(self) -> None:  # noqa: B027  # a runtime that needs nothing has nothing to try
        """Find out whether this machine can give such a runtime, with this one, which is over afterwards.

        Called once where a backend starts, with a runtime that is not started, so that a machine which cannot is told
        before it takes a rollout. By itself nothing is tried.

        Raises:
            RuntimeUnavailableError: it cannot; the message says what to install or change.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End everything that runs in it and remove its files. May be called again, and whatever `start` did.

        A cancelled `stop` goes on by itself; a further call waits for it.

        Raises:
            RuntimeFailedError: something could not be removed; the message says what.
        """

    @abstractmethod
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
        """Run a command to its end; text is one for ``/bin/sh``.

        It sees the variables of the runtime and of `env`, never those of this process, and starts in `cwd` (from
        `workdir` on). Its input is `stdin`, or empty. It is over when its first process has ended: servers that it
        left behind run on, until `stop`. When the time is over or this call is cancelled, its process group is
        killed. In the latter case `on_cut` is called with what it wrote until then.

        What programs do never raises: where they removed `cwd`, closed it or keep others from starting, and where the
        command is longer than the system takes, the exit code is 126 and the error output says so.

        Raises:
            RuntimeFailedError: it could not be started, for the runtime is broken or the machine is short of something.
            RuntimeStoppedError: the runtime is not started, or stopped, or was stopped meanwhile.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making the folders above it; `path` is as programs see it, or from `workdir` on.

        A symbolic link in its place is replaced, never followed.

        Raises:
            UnsafePathError: the path leaves the runtime's folder, or a folder on the way is a symbolic link.
            OSError: as usual.
        """

    @abstractmethod
    async def read(self, path: str, *, limit_bytes: int = READ_LIMIT_BYTES) -> bytes:
        """Read a file; `path` is as programs see it, or from `workdir` on.

        Raises:
            UnsafePathError: the path leaves the runtime's folder, or is a symbolic link or no plain file, or it is
                larger than `limit_bytes`.
            OSError: as usual, FileNotFoundError for one.
        """

    @abstractmethod
    async def allow(self, policy: NetworkPolicy, *, keep: Sequence[tuple[str, int]] = ()) -> None:
        """Let programs reach what the policy allows and nothing else, from now on. Calls that overlap take turns.

        `keep` are routes that stay open whatever the policy says, as host and port, with those of earlier calls; a
        program finds each at ``url_of(port)``.

        Raises:
            UnsupportedNetworkError: this runtime cannot enforce the policy; nothing has changed.
        """

    @abstractmethod
    def url_of(self, port: int) -> str:
        """The address, without a slash at its end, at which programs find a kept port of the host's loopback."""

    def why_absent(self, program: str) -> str | None:
        """For a command that ended with 127 or 126: why programs find no such one here though this machine has it,
        and what to change. None where there is nothing to say."""
        return None


def made_by(factory: Callable[..., Runtime], *, resources: Resources) -> Runtime:
    """A runtime of a backend's or a rollout's own: of a class, or of a function that makes one.

    It is given the `resources` where it takes them, as the classes do. Raises ``TypeError`` for what is no runtime.
    """
    takes_resources = "resources" in inspect.signature(factory).parameters
    made = factory(resources=resources) if takes_resources else factory()
    if not isinstance(made, Runtime):
        raise TypeError(f"the function that makes a runtime returned {shown(made)}; have it return a Runtime")
    return made
