"""The queries of the documents with the results shown below them."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

DOCS = Path(__file__).resolve().parents[3] / "docs"

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_SHOWN = re.compile(r"^```sql\n(SELECT|WITH)\b(.*?)^```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Question(msgspec.Struct, frozen=True):
    """A section's query and the lines of its result."""

    heading: str
    query: str
    result: list[str]


def questions(document: str) -> list[Question]:
    """A document's queries in their order, one for each section that has one."""
    parts = _SECTION.split((DOCS / document).read_text(encoding="utf-8"))
    found = []
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        shown = _SHOWN.findall(body)
        assert len(shown) == body.count("```sql\nSELECT") + body.count("```sql\nWITH"), (
            f"no result below a query: {heading}"
        )
        found += [Question(heading, start + rest, result.splitlines()) for start, rest, result in shown]
    return found


def cells(line: str, rule: str) -> list[str]:
    """A line's cells, cut where the rule below the heading says."""
    return [line[match.start() : match.end()].strip() for match in re.finditer(r"-+", rule)]


def shows(cell: str, value: Any) -> bool:
    """Whether a cell shows a value: numbers by what they are, however many zeros a database writes after them."""
    if value is None:
        return cell == ""
    if isinstance(value, str):
        return cell == value.strip()
    return Decimal(cell) == Decimal(str(value))
