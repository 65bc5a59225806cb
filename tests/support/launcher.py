"""Starts Rollbook's programs as copies of itself, which has imported what they import: a program of its own for that.

Importing is most of what a process does that lives for a second or two. A copy is a process like one that Python starts
anew, with its own variables, folder, group and output; only its command line is the launcher's.

Its argument is a socket of `tests.support.launching`, from which it takes one request after the other until that is
closed. Then it ends, and the kernel ends what it started.
"""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import select
import signal
import socket
import sys

import msgspec

# Beside what the programs import at their start there is what they import once they know their ledger.
import rollbook.cli.app
import rollbook.ledger.postgres.database
import rollbook.ledger.sqlite.database
import rollbook.scheduler.process
import rollbook.server.process  # noqa: F401

REQUEST_BYTES_MAX = 1 << 20
FILES_MAX = 8
_SIGNAL_OF_PARENTS_DEATH = 1  # of prctl(2)
_LIBC = ctypes.CDLL(None)


class Request(msgspec.Struct):
    """What to run, as `python -m MODULE ARGUMENTS` would.

    Files come with it: for the answers, for output, and one for each variable of ``passed``, which gets its number.
    """

    module: str
    arguments: list[str]
    variables: dict[str, str]
    folder: str
    passed: list[str]


class Launcher:
    """The processes it started, by a descriptor that tells of their end: what waits for each."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._started: dict[int, tuple[int, int]] = {}
        self._looking = select.poll()
        self._looking.register(requests, select.POLLIN)

    def serve(self) -> Request | None:
        """Start what is asked for until nobody can ask any more. Returns in the copies too, with what they shall run.

        An answer is the process id at once, and the wait status at the end, of four bytes each.
        """
        while True:
            for descriptor, _ in self._looking.poll():
                if descriptor in self._started:
                    self._bury(descriptor)
                    continue
                text, files, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES_MAX, FILES_MAX)
                if not text:
                    return None
                if (request := self._start(msgspec.json.decode(text, type=Request), files)) is not None:
                    return request

    def _bury(self, descriptor: int) -> None:
        pid, answers = self._started.pop(descriptor)
        self._looking.unregister(descriptor)
        _, status = os.waitpid(pid, 0)
        _answer(answers, status)
        os.close(answers)
        os.close(descriptor)

    def _start(self, request: Request, files: list[int]) -> Request | None:
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(request, files, launcher=launcher)
            return request
        answers, *given = files
        for file in given:
            os.close(file)
        os.setpgid(pid, pid)
        descriptor = os.pidfd_open(pid)
        self._started[descriptor] = pid, answers
        self._looking.register(descriptor, select.POLLIN)
        _answer(answers, pid)
        return None

    def _become(self, request: Request, files: list[int], *, launcher: int) -> None:
        _LIBC.prctl(_SIGNAL_OF_PARENTS_DEATH, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(1)
        os.setpgid(0, 0)
        for descriptor, (_, answers) in self._started.items():
            os.close(descriptor)
            os.close(answers)
        self._requests.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        answers, output, *passed = files
        for number, file in enumerate((nothing, output, output)):
            os.dup2(file, number)
        for file in (nothing, output, answers):
            os.close(file)
        os.environ.clear()
        os.environ.update(request.variables)
        os.environ.update({name: str(file) for name, file in zip(request.passed, passed, strict=True)})
        os.chdir(request.folder)


def _answer(answers: int, number: int) -> None:
    try:
        os.write(answers, number.to_bytes(4, "little"))
    except BrokenPipeError:  # nobody wants to know
        return


def main() -> None:
    """Start what the socket asks for; in a copy, run it."""
    gc.collect()
    gc.freeze()
    request = Launcher(socket.socket(fileno=int(sys.argv[1]))).serve()
    if request is None:
        return
    sys.path.insert(0, request.folder)
    sys.argv[1:] = request.arguments
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
