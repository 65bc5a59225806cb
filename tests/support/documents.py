"""The programs that documents show, as programs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.sources import ROOT

_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"in a file `(\w+\.py)`")


def programs(document: str) -> list[str]:
    """Every block of Python of a document, in its order."""
    return _PYTHON.findall((ROOT / document).read_text(encoding="utf-8"))


def queries(document: str) -> list[str]:
    """Every block of SQL of a document, in its order, without the last semicolon."""
    return [block.strip().removesuffix(";") for block in _SQL.findall((ROOT / document).read_text(encoding="utf-8"))]


def write_named(document: str, folder: Path) -> list[Path]:
    """The blocks that the text before them gives a file's name ("in a file `x.py`"), as such files in a folder."""
    text = (ROOT / document).read_text(encoding="utf-8")
    written = []
    for named in _NAMED.finditer(text):
        block = _PYTHON.search(text, named.end())
        assert block is not None, f"{document} shows no {named[1]}"
        written.append(folder / named[1])
        written[-1].write_text(block[1])
    return written
