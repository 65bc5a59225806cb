"""The demo's course: start everything, run the batch, stop everything, report. No process is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import httpx
import msgspec
import sqlalchemy as sa
from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding

from rollbook.backends.entrypoint import entrypoint_name
from rollbook.cli import stack
from rollbook.cli.failures import CommandError
from rollbook.settings import ApiSettings, SchedulerSettings
from rollbook.supervisor import stopped_by_signals
from rollbook_client import RolloutError

from . import report
from .batch import Graded, run_batch
from .endpoint import ChatEndpoint
from .example import EXAMPLE, Row, example_folder, read_rows
from .screen import Screen

ATTEMPTS = 4
SEED = 3
START_LIMIT_SEC = 60.0
LIMIT_SEC = 120.0
INTERRUPTED = 130

RESULT_WAIT_SEC = 5.0
LEASE_TIMEOUT_SEC = 30.0
DRAIN_SEC = 1.0
CLEAN_UP_SEC = 5.0


class Place(msgspec.Struct, frozen=True):
    """Where one demo keeps what it makes, and the example it runs."""

    folder: Path
    example: Path

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.folder / "ledger.sqlite3"

    @property
    def log(self) -> Path:
        """What the processes wrote to standard error."""
        return self.folder / "processes.log"

    @property
    def entrypoint(self) -> str:
        """The example's workflow and grader."""
        return str(self.example / "multiply.py")

    @property
    def database_url(self) -> str:
        """The ledger for the processes."""
        return sa.URL.create("sqlite", database=str(self.ledger.absolute())).render_as_string(hide_password=False)


def run_demo() -> int:
    """Run the example and show its results; the exit code.

    Everything it makes lies in a new folder below ``.rollbook`` of the current folder, and stays there.

    Raises:
        CommandError: the processes did not come up, or did not finish in time.
        LedgerUnavailable: the folder cannot be written.
    """
    screen = Screen()
    place = Place(_new_folder(), example_folder())
    rows = read_rows(place.example / "rows.jsonl")
    started = time.monotonic()
    stack.prepare(place.database_url)
    with _children_log_to(place.log):
        graded = asyncio.run(_supervised(screen, place, rows))
    if graded is None:
        screen.put("", f"Interrupted. What was recorded until then is in {escape(str(place.ledger))}")
        return INTERRUPTED
    _show(screen, place, graded, took_sec=time.monotonic() - started)
    return 0


def _new_folder() -> Path:
    folder = Path(".rollbook", f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{os.getpid()}")
    folder.mkdir(parents=True)
    return folder


@contextlib.contextmanager
def _children_log_to(path: Path) -> Iterator[None]:
    """Standard error of this process and of those it starts meanwhile goes to a file, out of the bar's way."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


async def _supervised(screen: Screen, place: Place, rows: list[Row]) -> list[Graded] | None:
    """The graded rows; None where somebody interrupted. The processes have ended when this returns or raises."""
    queue = entrypoint_name(place.entrypoint)
    both = stack.Stack(
        ApiSettings(
            database_url=place.database_url,
            queue=queue,
            port=0,
            result_wait_timeout_sec=RESULT_WAIT_SEC,
            polling_lease_timeout_sec=LEASE_TIMEOUT_SEC,
        ),
        SchedulerSettings(
            database_url=place.database_url,
            entrypoint=place.entrypoint,
            queues=(queue,),
            drain_sec=DRAIN_SEC,
            clean_up_sec=CLEAN_UP_SEC,
            force_sec=CLEAN_UP_SEC,
        ),
    )
    ready = asyncio.Event()
    processes = asyncio.create_task(both.run(on_ready=lambda _line: ready.set()), name="processes")
    batch = asyncio.create_task(_batch(screen, both.url, rows, ready), name="batch")

    def interrupt() -> None:
        batch.cancel()

    with stopped_by_signals(stop=interrupt, kill=both.supervisor.kill):
        try:
            await asyncio.wait({processes, batch}, return_when=asyncio.FIRST_COMPLETED)
            gave_up = processes.done()
        finally:
            batch.cancel()
            both.stop()
            await asyncio.wait({processes, batch})
    if batch.cancelled():
        if gave_up:
            raise CommandError(f"the demo's processes ended before it was done; look into {place.log}")
        return None
    return _outcome(batch, place)


def _outcome(batch: asyncio.Task[list[Graded]], place: Place) -> list[Graded]:
    try:
        return batch.result()
    except TimeoutError as error:
        raise CommandError(f"the demo was not done in time; look into {place.log}") from error
    except (RolloutError, httpx.TransportError) as error:
        raise CommandError(f"the demo's server did not answer as it should: {error}; look into {place.log}") from error


async def _batch(screen: Screen, url: str, rows: list[Row], ready: asyncio.Event) -> list[Graded]:
    endpoint = ChatEndpoint(seed=SEED)
    async with endpoint.serving():
        screen.put(
            "",
            f"[bold]Rollbook demo[/bold]: {EXAMPLE}, {len(rows)} rows × {ATTEMPTS} attempts",
            "[dim]  starting an API, a scheduler, a runner, and a policy that makes mistakes[/dim]",
        )
        async with asyncio.timeout(START_LIMIT_SEC):
            await ready.wait()
        screen.put(f"[dim]  rollouts at {url}, policy at {endpoint.origin}[/dim]", "")
        with screen.bar() as bar:
            async with asyncio.timeout(LIMIT_SEC):
                return await run_batch(url, endpoint, rows, attempts=ATTEMPTS, on_progress=bar.show)


def _show(screen: Screen, place: Place, graded: list[Graded], *, took_sec: float) -> None:
    ledger = escape(str(place.ledger))
    with contextlib.closing(report.open_ledger(place.ledger)) as db:
        screen.put("", "[bold]Rewards[/bold]", "", _indented(report.rewards_table(graded)))
        screen.put("", "[bold]Durations[/bold] in milliseconds", "", _indented(report.durations_table(db)))
        events = report.count_events(db)
        screen.put(
            "",
            f"[bold]Ledger[/bold] with {events} events, each of them on disk before it was answered",
            "",
            f"  {ledger}",
            "",
            f"[bold]Two queries[/bold] for `sqlite3 {escape(shlex.quote(str(place.ledger)))}`",
        )
        for title, query in report.queries(graded):
            lines = (f"  [cyan]{escape(line)}[/cyan]" for line in f"{query};".splitlines())
            screen.put("", f"  {title}", "", *lines, "", _indented(report.query_table(db, query)))
    url, command = escape(shlex.quote(f"sqlite:///{place.ledger}")), escape(_command())
    show = f"show {report.instructive(graded)}"
    screen.put(
        "",
        "[bold]Next[/bold]",
        "",
        f"  [cyan]export ROLLBOOK_DATABASE_URL={url}[/cyan]",
        f"  [cyan]{command} {show:<24}[/cyan] all about one rollout, its messages included",
        f"  [cyan]{command} {'audit verify':<24}[/cyan] prove that no event was changed",
        "",
        "  A rollout of your own takes five minutes: see README.md.",
        "",
        f"[dim]Done in {took_sec:.1f} s.[/dim]",
    )


def _command() -> str:
    """How to call this command line again: after `make demo` it is not on the search path."""
    if shutil.which("rollbook") is not None:
        return "rollbook"
    called = Path(sys.argv[0])
    return shlex.quote(str(called)) if called.name == "rollbook" else f"{shlex.quote(sys.executable)} -m rollbook"


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))
