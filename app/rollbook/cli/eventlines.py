"""An event as a line for people: where, when, which rollout, what, and the short part of what it carries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len

from rollbook.ledger import codec
from rollbook.ledger.reader import StoredEvent

from . import output
from .tables import cut, cut_middle, short

MOST_ALIGNED = 48
"""Ids longer than this do not push every later line to the right."""

LEAST_ID_WIDTH = 16
WIDTH_BESIDE_ID = 76
"""What a terminal's line needs for the rest, the beginning of the details included."""

_LONG_FIELDS = frozenset(
    {"request", "sample", "trajectory", "data", "lease_nonce", "lease_digest", "endpoint_digest", "rollout_id"}
)
_USUAL = {"scoring": 0, "purpose": "policy"}
"""What is told only where it is something else."""
_DURATIONS = frozenset({"took", "first_chunk"})


class EventLines:
    """Lines one below the other. On a terminal none is longer than its width; elsewhere nothing is cut."""

    def __init__(self, *, with_ids: bool) -> None:
        self._with_ids = with_ids
        self._broad = 0

    def of(self, page: list[StoredEvent]) -> Iterator[str]:
        """The lines of some events."""
        terminal, width = output.on_terminal(), output.width()
        ids = [output.printable(event.rollout_id) if self._with_ids else "" for event in page]
        if terminal:
            most = max(LEAST_ID_WIDTH, width - WIDTH_BESIDE_ID)
            ids = [cut_middle(name, most) for name in ids]
        self._broad = max([self._broad, *(min(cell_len(name), MOST_ALIGNED) for name in ids)])
        for name, event in zip(ids, page, strict=True):
            line = self._line(name, event)
            yield cut(line, width) if terminal else line

    def _line(self, name: str, event: StoredEvent) -> str:
        parts = [f"{event.position:>8}", output.moment_text(event.recorded_at)]
        if self._with_ids:
            parts.append(f"{name}{' ' * (self._broad - cell_len(name))}")
        parts += [f"{event.seq:>4}", f"{event.type:<22}", detail(event.payload)]
        return "  ".join(parts).rstrip()


def detail(payload: str) -> str:
    """The short fields of a payload, nothing of what is null, false or as usual; a score's null is told."""
    document = codec.loads(payload)
    if not isinstance(document, dict):
        return ""
    if "call" in document and "ended_at" in document:
        document = _call(document)
    told = [
        (name, value)
        for name, value in document.items()
        if name not in _LONG_FIELDS
        and ((value is not None and value is not False) or name == "value")
        and _USUAL.get(name, ()) != value
    ]
    told.sort(key=lambda field: field[0] == "attempt")  # last, where a terminal's end may cut it
    return output.printable(" ".join(_field(name, value) for name, value in told))


def _call(document: dict[str, Any]) -> dict[str, Any]:
    """A model call with durations instead of times, and its tokens as `in+out`."""
    told = dict(document)
    started, first, ended = (told.pop(name, None) for name in ("started_at", "first_chunk_at", "ended_at"))
    tokens_in, tokens_out = (told.pop(name, None) for name in ("input_tokens", "output_tokens"))
    if isinstance(started, int) and isinstance(ended, int):
        told["took"] = output.duration_text(started, ended)
        if isinstance(first, int):
            told["first_chunk"] = output.duration_text(started, first)
    if tokens_in is not None or tokens_out is not None:
        told["tokens"] = "+".join("?" if count is None else str(count) for count in (tokens_in, tokens_out))
    return told


def _field(name: str, value: Any) -> str:
    if name in _DURATIONS and isinstance(value, str):
        return f"{name} {value}"
    if name == "spans" and isinstance(value, list):
        return ", ".join(_span(span) for span in value)
    if name.endswith("_at") and isinstance(value, int):
        return f"{name}={output.moment_text(value)}"
    if name.endswith("_us") and isinstance(value, int):
        return f"{name.removesuffix('_us')}={value / 1_000_000:g} s"
    if isinstance(value, str):
        text = short(value) if name == "scheduler" else value
        return f'{name}="{text}"' if " " in value else f"{name}={text}"
    return f"{name}={codec.ascii_json(value)}"


def _span(span: Any) -> str:
    try:
        return f"{span['stage']} {output.duration_text(span['started_at'], span['ended_at'])}"
    except (KeyError, TypeError):  # an event of another version
        return codec.ascii_json(span)
