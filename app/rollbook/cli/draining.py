"""`rollbook drain`: closing admission before a deploy, waiting until nothing is active, and opening it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import typer

from rollbook.ledger.commands import CloseAdmission, OpenAdmission
from rollbook.ledger.drains import WHOLE_LEDGER
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import Closure, LedgerUnavailable
from rollbook.ledger.urls import DEFAULT_DATABASE_URL
from rollbook.ledger.vitals import alive, read_members, read_queues

from . import options, output
from .changing import user_name
from .outage import Outage

LOOK_EVERY_SEC = 1.0
"""How often to look while nothing is told; a feed hears of most changes sooner."""
LEAST_PAUSE_SEC = 0.25
"""Between two looks, so that a busy ledger gives a few lines a second and not thousands."""

LONGEST_LOOK_SEC = 1.0
"""What the last look may take once the time to wait is up: a ledger may also hang without a word."""

NOT_IDLE = 1

_UNHEARD = logging.NullHandler()


class Active(msgspec.Struct, frozen=True):
    """How much is still to be done, and how many live schedulers there are to do it."""

    queued: int
    running: int
    schedulers: int

    @property
    def idle(self) -> bool:
        return not (self.queued or self.running)


def drain(
    *,
    off: Annotated[bool, typer.Option("--off", help="Open admission again.")] = False,
    queue: Annotated[
        str | None, typer.Option(help="Only this queue, not the whole ledger.", metavar="NAME", show_default=False)
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing is queued or running.")] = True,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop waiting after so many seconds, with exit code 1.")
    ] = None,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> int:
    """Close admission to the ledger for all its APIs (503), and wait until all that it has is done.

    What is queued and running goes on. It stays closed, whatever restarts, until `rollbook drain --off`.
    """
    if queue is not None and not queue.strip():
        raise typer.BadParameter("it is blank; leave it out for the whole ledger", param_hint="--queue")
    told = _JsonLines() if json else _TextLines()
    by = f"{user_name()}@{socket.gethostname()}"
    if off:
        return asyncio.run(_open(database_url, OpenAdmission(by=by, queue=queue or WHOLE_LEDGER), told))
    command = CloseAdmission(by=by, queue=queue or WHOLE_LEDGER)
    return asyncio.run(_close(database_url, command, told, limit_sec=timeout, wait=wait))


async def _open(database_url: str, command: OpenAdmission, told: _Lines) -> int:
    async with _ledger(database_url) as ledger:
        opened = await ledger.submit(command)
        told.opened(opened, await ledger.reader.closures())
    return 0


async def _close(
    database_url: str, command: CloseAdmission, told: _Lines, *, limit_sec: float | None, wait: bool
) -> int:
    # Without a handler, what the ledger's feed logs of an outage would go to standard error, beside our own line.
    logging.getLogger("rollbook").addHandler(_UNHEARD)
    async with _ledger(database_url) as ledger:
        changes = asyncio.Event()
        ledger.feed.listen(lambda _: changes.set())
        await ledger.submit(command)
        closure = await _closure(ledger, command.queue)
        if closure is None:
            return told.reopened()
        told.closed(closure)
        clock = asyncio.get_running_loop().time
        deadline = math.inf if limit_sec is None else clock() + limit_sec
        before: Active | None = None
        outage = Outage("waiting")
        while True:
            changes.clear()
            try:
                async with asyncio.timeout(max(deadline - clock(), LONGEST_LOOK_SEC) if wait else None):
                    now, found = await _active(ledger, command.queue), await _closure(ledger, command.queue)
            except TimeoutError:
                outage.unanswered()
                return told.timed_out()
            except LedgerUnavailable as error:
                if not wait:
                    raise
                outage.met(error)
            else:
                outage.over()
                if now != before:
                    told.active(now)
                    before = now
                if not wait or now.idle:
                    return 0
                if found != closure:
                    return told.reopened()
            if clock() >= deadline:
                return told.timed_out()
            await asyncio.sleep(LEAST_PAUSE_SEC)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changes.wait(), min(LOOK_EVERY_SEC, max(0.0, deadline - clock())))


@contextlib.asynccontextmanager
async def _ledger(database_url: str) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(database_url, migrate=False, with_keys=False)
    try:
        yield ledger
    finally:
        await ledger.close()


async def _closure(ledger: Ledger, queue: str) -> Closure | None:
    return next((found for found in await ledger.reader.closures() if found.queue == queue), None)


async def _active(ledger: Ledger, queue: str) -> Active:
    queues = [found for found in await read_queues(ledger.reader) if not queue or found.queue == queue]
    members = alive(await read_members(ledger.reader), "scheduler", ledger.clock())
    return Active(
        sum(found.queued for found in queues),
        sum(found.running for found in queues),
        sum(not queue or queue in member.queues for member in members),
    )


class _TextLines:
    """What happens, in words."""

    def closed(self, closure: Closure) -> None:
        what = f"queue {closure.queue}" if closure.queue else "the ledger"
        since = f"since {output.time_text(closure.closed_at)}, by {closure.closed_by}"
        self._put(f"admission to {what} is closed {since}; open it again with `rollbook drain --off`")

    def active(self, now: Active) -> None:
        if now.idle:
            self._put("idle: nothing is queued or running")
        elif now.schedulers:
            self._put(f"{now.queued} queued, {now.running} running")
        else:
            self._put(f"{now.queued} queued, {now.running} running; no scheduler is alive to run them")

    def opened(self, closures_ended: int, still_closed: list[Closure]) -> None:
        names = ", ".join(closure.queue or "the whole ledger" for closure in still_closed)
        self._put("admission is open again" if closures_ended else "admission was not closed")
        if names:
            self._put(f"still closed: {names}")

    def reopened(self) -> int:
        self._put("somebody opened admission again meanwhile; nothing is drained")
        return NOT_IDLE

    def timed_out(self) -> int:
        self._put("not idle in time; admission stays closed, wait on with `rollbook drain`")
        return NOT_IDLE

    def _put(self, line: str) -> None:
        output.put(f"{output.printable(line)}\n")


class _JsonLines:
    """What happens, one object on each line."""

    def closed(self, closure: Closure) -> None:
        output.put_json({"event": "closed", **msgspec.structs.asdict(closure)})

    def active(self, now: Active) -> None:
        output.put_json({"event": "idle" if now.idle else "active", **msgspec.structs.asdict(now)})

    def opened(self, closures_ended: int, still_closed: list[Closure]) -> None:
        output.put_json({"event": "opened", "closures_ended": closures_ended, "still_closed": still_closed})

    def reopened(self) -> int:
        output.put_json({"event": "reopened"})
        return NOT_IDLE

    def timed_out(self) -> int:
        output.put_json({"event": "timed_out"})
        return NOT_IDLE


type _Lines = _TextLines | _JsonLines
