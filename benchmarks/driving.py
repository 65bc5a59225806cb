"""Driving a server with the reference's client: the shared `tools/drive.py`, unchanged, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from .processes import shared_folder

CLIENT_PROCESSES = 4
LIMIT_SEC = 120.0

# Imported before the driver forks its clients: else each of them would import the reference within the measured time.
_START = """
import runpy, sys
import httpx, osmosis_ai.rollout.client
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Drive(msgspec.Struct, frozen=True):
    """What the driver measured, in its own names."""

    callers: int
    rollouts_per_s: float
    admission_p50_ms: float
    admission_p99_ms: float
    completion_p50_ms: float
    completion_p99_ms: float
    server_cpu_ms_per_rollout: float
    outcomes: dict[str, int]


class DriveFailed(RuntimeError):
    """The driver did not end well; the message says how."""


def drive(url: str, *, rollouts: int, callers: int, pids: Sequence[int] = ()) -> Drive:
    """Run ``rollouts`` rollouts by ``callers`` callers in up to four client processes.

    ``pids`` are the server's processes, whose CPU time is measured.

    Raises:
        DriveFailed: the driver failed, or a rollout did not end as a success.
    """
    path = shared_folder() / "tools" / "drive.py"
    arguments = [url, str(rollouts), str(callers), "--processes", str(CLIENT_PROCESSES)]
    if pids:
        arguments += ["--pids", ",".join(map(str, pids))]
    output = _run([sys.executable, "-c", _START, str(path), *arguments])
    result = msgspec.json.decode(output, type=Drive)
    failed = {outcome: count for outcome, count in result.outcomes.items() if not outcome.startswith("success:1.0:")}
    if failed:
        raise DriveFailed(f"{url}: not every rollout was a success with reward 1.0: {failed}")
    return result


def _run(command: Sequence[str]) -> str:
    """What the driver prints. When one of its clients fails it waits for ever, so its time is limited."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT_SEC)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # with the clients that it forked
            _, errors = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise DriveFailed(f"the driver did not end within {LIMIT_SEC:g} s: {errors[-2_000:]}") from error
    if process.returncode != 0:
        raise DriveFailed(f"the driver ended with code {process.returncode}: {errors[-2_000:]}")
    return output
