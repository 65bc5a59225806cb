"""Where the demo's output goes: a terminal with colours and a live bar, or plain lines for everything else."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from rollbook.cli import output

from .batch import Tally

PLAIN_WIDTH = 100
PLAIN_STEPS = 4
"""How many lines without a terminal tell of the progress."""


class Bar(Protocol):
    """Shows how far the batch is."""

    def show(self, tally: Tally) -> None:
        """Show this; called often, also when nothing changed."""


class Screen:
    """The standard output of this process."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()

    def _console(self, file: io.TextIOBase | None) -> Console:
        return Console(
            file=file,  # type: ignore[arg-type]  # None is standard output
            force_terminal=self.terminal,
            width=None if self.terminal else PLAIN_WIDTH,
            no_color=not self.terminal or "NO_COLOR" in os.environ,
            highlight=False,
            legacy_windows=False,
        )

    def put(self, *parts: RenderableType) -> None:
        """Print renderables, one below the other; text is never wrapped, so that paths and queries can be copied.

        Raises:
            OutputClosed: nobody reads any more.
        """
        sink = io.StringIO()
        console = self._console(sink)
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
        output.put("".join(f"{line.rstrip()}\n" for line in sink.getvalue().splitlines()))

    @contextlib.contextmanager
    def bar(self) -> Iterator[Bar]:
        """A live bar on a terminal, a few lines elsewhere."""
        if not self.terminal:
            yield PlainBar()
            return
        columns = (
            TextColumn(" "),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[counts]}"),
        )
        with Progress(*columns, console=self._console(None)) as progress:
            yield _LiveBar(progress)


class _LiveBar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("rollouts", total=None, counts="")

    def show(self, tally: Tally) -> None:
        counts = f"  {tally.queued} queued, {tally.running} running, {tally.grading} grading"
        self._progress.update(self._task, total=tally.total, completed=tally.done, counts=counts)


class PlainBar:
    """A line whenever another quarter is done."""

    def __init__(self) -> None:
        self._steps_told = 0

    def show(self, tally: Tally) -> None:
        """Print a line if this is further than the last one."""
        steps = PLAIN_STEPS * tally.done // tally.total if tally.total else 0
        if steps > self._steps_told:
            self._steps_told = steps
            output.put(f"  {tally.done} of {tally.total} rollouts are done\n")
