"""A runner process: loads the entrypoint, runs what the scheduler sends, and dies with its scheduler."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import socket
import sys

import msgspec
import uvloop

from rollbook.backends.base import ExecutionBackend
from rollbook.backends.entrypoint import check_entrypoint, load_entrypoint
from rollbook.backends.errors import EntrypointError
from rollbook.scheduler.memory import Marks
from rollbook.scheduler.settings import SETTINGS_VARIABLE, RunnerSettings
from rollbook.scheduler.wire import (
    Assignment,
    Broken,
    Cancel,
    FramePipe,
    Ready,
    Shutdown,
    ToRunner,
)
from rollbook.supervisor import EX_CONFIG
from rollbook.tuning import allow_many_files

from .executor import Executor
from .logs import SecretRegistry, log_scrubbed, scrub_streams
from .marks import mark_tasks
from .outbox import Outbox

_PR_SET_PDEATHSIG = 1
REARM_SEC = 1.0
"""How often the watchdog is put off; each time costs a thread."""


def main() -> int:
    """The process: returns its exit code."""
    settings = msgspec.json.decode(os.environ.pop(SETTINGS_VARIABLE), type=RunnerSettings)
    _die_with_parent(settings.parent)
    # The scheduler decides when this process ends. Not SIG_IGN: programs that it starts would inherit that.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    if settings.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (settings.memory_bytes, settings.memory_bytes))
    allow_many_files()  # the connections of all its programs and models are
    secrets = SecretRegistry()
    log_scrubbed(secrets, process="runner", stream=sys.stderr)
    scrub_streams(secrets)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every model call would drown the author's own
    pipe = socket.socket(fileno=settings.pipe)
    try:
        backend = load_entrypoint(
            settings.entrypoint,
            max_concurrent=settings.max_concurrent,
            record_model_calls=settings.record_model_calls,
        )
        check_entrypoint(settings.entrypoint, backend)
    except EntrypointError as error:
        frame = msgspec.msgpack.encode(Broken(str(error)))
        pipe.sendall(len(frame).to_bytes(4, "big") + frame)
        return EX_CONFIG
    return uvloop.run(_serve(backend, pipe, settings, secrets))


def _die_with_parent(parent: int) -> None:
    # Code that blocks the loop cannot notice a closed pipe; the kernel ends this process with its parent.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


async def _serve(
    backend: ExecutionBackend, pipe: socket.socket, settings: RunnerSettings, secrets: SecretRegistry
) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bool] = loop.create_future()

    def close(clean: bool) -> None:
        if not ended.done():
            ended.set_result(clean)

    def receive(message: ToRunner) -> None:
        if isinstance(message, Assignment):
            executor.start(message)
        elif isinstance(message, Cancel):
            executor.cancel(message.key)
        else:
            assert isinstance(message, Shutdown)
            close(True)

    marks = Marks(settings.marks)
    frames: FramePipe[ToRunner] = FramePipe(ToRunner, receive, lambda: close(False))  # type: ignore[arg-type]
    outbox = Outbox(frames.send)
    executor = Executor(backend, secrets, outbox.put, on_move=marks.move)
    await loop.create_unix_connection(lambda: frames, sock=pipe)
    mark_tasks(loop, marks)
    _arm_stacks(loop, settings)
    frames.send(Ready(backend.max_concurrent))
    if not await ended:
        os._exit(1)  # the scheduler is gone; its successor runs these rollouts, and nothing here is worth keeping
    await executor.shut_down()
    outbox.flush()
    frames.close()
    return 0


def _arm_stacks(loop: asyncio.AbstractEventLoop, settings: RunnerSettings) -> None:
    """Keep the watchdog of `faulthandler` from firing; once the loop is blocked it writes all stacks, GIL or not."""

    def arm() -> None:
        os.ftruncate(settings.stacks, 0)
        os.lseek(settings.stacks, 0, os.SEEK_SET)
        faulthandler.dump_traceback_later(settings.stack_after_sec, file=settings.stacks)
        loop.call_later(REARM_SEC, arm)

    arm()
