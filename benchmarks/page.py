"""`docs/benchmarks.md`: a section for each benchmark between two comments; the rest is written by hand."""

from __future__ import annotations

import datetime
import re

from . import machine
from .processes import ROOT
from .report import Report, markdown

PATH = ROOT / "docs" / "benchmarks.md"

_EMPTY = """# Speed and memory

Written by `python -m benchmarks --write` (or `make bench ARGS=--write`): the text between the comments is replaced
by the next run of the benchmark they name. Absolute figures belong to the machine named with them; the ratios, which
are measured in one run, carry further.
"""


def write(report: Report, *, quick: bool) -> None:
    """Put a benchmark's section into the page, where it was or at the end."""
    text = PATH.read_text(encoding="utf-8") if PATH.exists() else _EMPTY
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(with_section(text, report.name, section(report, quick=quick)), encoding="utf-8")


def section(report: Report, *, quick: bool) -> str:
    """The section: command, date and machine above the tables."""
    command = f"python -m benchmarks {report.name}{' --quick' if quick else ''}"
    heading, _, body = markdown(report).partition("\n\n")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{heading}\n\n`{command}`, {today}, {machine.describe()}.\n\n{body}"


def with_section(page: str, name: str, text: str) -> str:
    """The page with a section replaced, or added at its end."""
    begin, end = f"<!-- benchmark {name} -->", f"<!-- end of {name} -->"
    block = f"{begin}\n{text}\n{end}"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if pattern.search(page):
        return pattern.sub(lambda _: block, page, count=1)
    return f"{page.rstrip()}\n\n{block}\n"
