"""Which Rollbook this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def rollbook_version() -> str:
    """The version of the installed distribution; 0 where the code runs without one."""
    try:
        return version("rollbook")
    except PackageNotFoundError:
        return "0"
