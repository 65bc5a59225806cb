"""What a check-up of a ledger says: one subject, how it is, and what to do where it is not well."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warning", "error"]


class Diagnosis(msgspec.Struct, frozen=True):
    """``error``: it must be fixed, or rollouts wait, fail or may be lost. ``warning``: it works, for now or less well.

    ``fix`` says what to do; None where nothing is to be done.
    """

    subject: str
    level: Level
    text: str
    fix: str | None = None


def well(subject: str, text: str) -> Diagnosis:
    """Nothing is to be done."""
    return Diagnosis(subject, "ok", text)


def doubtful(subject: str, text: str, *, fix: str) -> Diagnosis:
    """It works, and should be looked at."""
    return Diagnosis(subject, "warning", text, fix)


def ill(subject: str, text: str, *, fix: str) -> Diagnosis:
    """It must be fixed."""
    return Diagnosis(subject, "error", text, fix)


def size_text(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
