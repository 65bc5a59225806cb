"""`docs/benchmarks.md`: a section for each benchmark between two comments; the rest is written by hand."""

from __future__ import annotations

import datetime
import re

import msgspec

from . import machine
from .places import SQLITE, Place
from .processes import ROOT
from .report import Report, markdown

PATH = ROOT / "docs" / "benchmarks.md"

_EMPTY = """# Speed and memory

Written by `python -m benchmarks --write` (or `make bench ARGS=--write`): the text between the comments is replaced
by the next run of the benchmark they name. `--database postgresql` measures on a PostgreSQL server that is started
for the run, durable and by a Unix socket. Absolute figures belong to the machine named with them; the ratios, which
are measured in one run, carry further.
"""


def write(report: Report, place: Place, *, quick: bool) -> None:
    """Put a benchmark's section into the page, where it was or at the end."""
    text = PATH.read_text(encoding="utf-8") if PATH.exists() else _EMPTY
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(with_section(text, _name(report, place), section(report, place, quick=quick)), encoding="utf-8")


def _name(report: Report, place: Place) -> str:
    return report.name if place.name == SQLITE else f"{report.name} on {place.title}"


def section(report: Report, place: Place, *, quick: bool) -> str:
    """The section: command, date and machine above the tables."""
    words = ["python -m benchmarks", *(() if place.name == SQLITE else ("--database", place.name)), report.name]
    command = " ".join([*words, "--quick"] if quick else words)
    named = msgspec.structs.replace(report, name=_name(report, place))
    heading, _, body = markdown(named).partition("\n\n")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{heading}\n\n`{command}`, {today}, {machine.describe()}, {place.describe()}.\n\n{body}"


def with_section(page: str, name: str, text: str) -> str:
    """The page with a section replaced, or added at its end."""
    begin, end = f"<!-- benchmark {name} -->", f"<!-- end of {name} -->"
    block = f"{begin}\n{text}\n{end}"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if pattern.search(page):
        return pattern.sub(lambda _: block, page, count=1)
    return f"{page.rstrip()}\n\n{block}\n"
