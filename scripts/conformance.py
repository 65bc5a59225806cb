"""Conformance: the shared black-box scenarios against the reference server and against every shape of Rollbook.

    python -m scripts.conformance [TARGET…]

The scenarios run unchanged, each target on a free port and in a fresh folder; their answers are compared with the
recorded ones as parsed JSON. The exit code is 0 only when all are equal. `ROLLBOOK_SHARED` names the folder that
holds `conformance/`; by default it is `shared` beside this repository.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollbook.settings import DATABASE_VARIABLE
from tests.support.balancer import balanced
from tests.support.databases import secret_key_of
from tests.support.postgres import fresh_database

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_SEC = 60.0
STOP_LIMIT_SEC = 60.0
RUN_LIMIT_SEC = 600.0
PAUSE_SEC = 0.05
SLOTS = 2
WAIT_SEC, LEASE_SEC = "1", "3"

# The scenarios assume two slots; `behaviours.backend` has eight unless it is told.
ENTRYPOINT = f"""
import behaviours

def backend():
    return behaviours.backend(max_concurrent={SLOTS})
"""

EMBEDDED = f"""
import sys

import behaviours
import uvicorn
from rollbook import create_rollout_server

app = create_rollout_server(
    backend=behaviours.backend(max_concurrent={SLOTS}),
    result_wait_timeout_sec={WAIT_SEC},
    polling_lease_timeout_sec={LEASE_SEC},
    database_url="sqlite:///ledger.sqlite3",
)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""

ROLLBOOK = (sys.executable, "-m", "rollbook")
TIMES = ("--result-wait", WAIT_SEC, "--lease-timeout", LEASE_SEC)
QUEUE = ("--queue", "conformance")


def _api(port: str = "{port}") -> tuple[str, ...]:
    return (*ROLLBOOK, "serve", "--no-scheduler", *QUEUE, "--port", port, *TIMES)


def _scheduler(*options: str) -> tuple[str, ...]:
    return (*ROLLBOOK, "scheduler", "entrypoint.py:backend", *QUEUE, *options)


class Target(msgspec.Struct, frozen=True):
    """A server to compare: the commands that start it ({port} is filled in), and the SDK its workflow imports.

    ``before`` runs first, to its end. On PostgreSQL there is {other_port} too, and clients reach both ports in turn.
    """

    title: str
    commands: tuple[tuple[str, ...], ...]
    sdk: str = "rollbook"
    before: tuple[str, ...] = ()
    on_postgres: bool = False


TARGETS = {
    "reference": Target("the reference", ((sys.executable, "{conformance}/reference_server.py", "{port}"),), "osmosis"),
    "embedded": Target("create_rollout_server", ((sys.executable, "embedded.py", "{port}"),)),
    "apart": Target("serve --no-scheduler, scheduler", (_api(), _scheduler())),
    "serve": Target("serve", ((*ROLLBOOK, "serve", "entrypoint.py:backend", "--port", "{port}", *TIMES),)),
    "many": Target(
        "2 APIs, 2 schedulers, PostgreSQL",
        (_api(), _api("{other_port}"), *[_scheduler("--max-concurrent", str(SLOTS // 2))] * 2),
        before=(*ROLLBOOK, "db", "upgrade"),
        on_postgres=True,
    ),
}


class ConformanceError(Exception):
    """The comparison could not be made; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the targets that the arguments name, all by default; the exit code."""
    parser = argparse.ArgumentParser(description="Compare answers on the wire with the recorded ones.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    names = parser.parse_args(arguments).targets or list(TARGETS)
    if unknown := sorted(set(names) - TARGETS.keys()):
        parser.error(f"there is no target {', '.join(unknown)}; choose from {', '.join(TARGETS)}")
    try:
        conformance = _conformance_folder()
        expected = json.loads((conformance / "expected.json").read_text())
        results = {name: _compare(TARGETS[name], conformance, expected) for name in names}
    except (ConformanceError, OSError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    _print(results, len(expected))
    return 1 if any(results.values()) else 0


def _conformance_folder() -> Path:
    shared = Path(os.environ.get("ROLLBOOK_SHARED") or ROOT.parent / "shared").absolute()
    folder = shared / "conformance"
    if not (folder / "scenarios.py").is_file():
        raise ConformanceError(
            f"{folder} has no scenarios.py; name the folder that holds conformance/ by the variable ROLLBOOK_SHARED"
        )
    return folder


def _compare(target: Target, conformance: Path, expected: dict[str, Any]) -> list[str]:
    """The differences of one target."""
    print(f"{target.title} ...", file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="rollbook-conformance-") as name,
        _serving(target, conformance, Path(name)) as url,
    ):
        done = subprocess.run(
            [sys.executable, str(conformance / "scenarios.py"), url],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_SEC,
        )
    if done.returncode != 0:
        raise ConformanceError(f"the scenarios failed against {target.title}: {done.stderr[-2_000:]}")
    return list(differences(expected, json.loads(done.stdout)))


def differences(expected: Any, observed: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ, one line each; numbers are equal by value, and true is not 1."""
    if isinstance(expected, dict) and isinstance(observed, dict):
        for key in sorted(expected.keys() | observed.keys()):
            where = f"{path}.{key}" if path else key
            if key not in observed:
                yield f"{where}: expected {_shown(expected[key])}, found nothing"
            elif key not in expected:
                yield f"{where}: expected nothing, found {_shown(observed[key])}"
            else:
                yield from differences(expected[key], observed[key], where)
    elif isinstance(expected, list) and isinstance(observed, list) and len(expected) == len(observed):
        for index, (want, have) in enumerate(zip(expected, observed, strict=True)):
            yield from differences(want, have, f"{path}[{index}]")
    elif isinstance(expected, bool) is not isinstance(observed, bool) or expected != observed:
        yield f"{path}: expected {_shown(expected)}, found {_shown(observed)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _print(results: Mapping[str, Sequence[str]], scenarios: int) -> None:
    width = max(len(TARGETS[name].title) for name in results)
    print(f"{'server'.ljust(width)}  scenarios  differences")
    for name, found in results.items():
        print(f"{TARGETS[name].title.ljust(width)}  {scenarios:9}  {len(found) or 'none':>11}")
    for name, found in results.items():
        for line in found:
            print(f"{name}: {line}")


@contextlib.contextmanager
def _serving(target: Target, conformance: Path, folder: Path) -> Iterator[str]:
    """The target's processes over the block, in the folder; its URL once it answers and could run a rollout."""
    (folder / "entrypoint.py").write_text(ENTRYPOINT)
    (folder / "embedded.py").write_text(EMBEDDED)
    port, other_port = _free_port(), _free_port()
    variables = {**os.environ, "CONFORMANCE_SDK": target.sdk, "PYTHONPATH": str(conformance)}
    url = f"http://127.0.0.1:{port}"
    log = folder / "output.log"
    with log.open("wb") as output, contextlib.ExitStack() as stack:
        if target.on_postgres:
            database_url = stack.enter_context(fresh_database())
            url = stack.enter_context(balanced([port, other_port]))
            # A group behind one balancer is one server to its clients.
            variables |= {DATABASE_VARIABLE: database_url, "ROLLBOOK_PROCESS_ID": "conformance"}
            variables |= secret_key_of(database_url)
        if (
            target.before
            and subprocess.run(target.before, cwd=folder, env=variables, stdout=output, stderr=output).returncode
        ):
            raise ConformanceError(f"{' '.join(target.before)} failed; it wrote:\n{log.read_text(errors='replace')}")
        processes = []
        for command in target.commands:
            words = [word.format(port=port, other_port=other_port, conformance=conformance) for word in command]
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            stack.callback(_stop, process)
            processes.append(process)
        _wait(url, processes, log)
        yield url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(url: str, processes: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_SEC
    while not _can_run(url):
        if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
            raise ConformanceError(f"the server did not come up; it wrote:\n{log.read_text(errors='replace')[-2_000:]}")
        time.sleep(PAUSE_SEC)


def _can_run(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            health: dict[str, Any] = json.load(answer)
    except (urllib.error.URLError, OSError):
        return False
    return health.get("status") == "ok" and bool(health["concurrency"]["max_concurrent"] == SLOTS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL; children of ours end with their parent, whichever way it goes."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_SEC)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
