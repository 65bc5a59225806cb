"""`rollbook demo`: the multiplication example end to end, on a ledger of its own."""

from __future__ import annotations

from .run import run_demo

__all__ = ["run_demo"]
