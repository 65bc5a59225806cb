"""Programs that this machine has and a sandbox does not: what would have to be shown for them to run inside."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["why_absent"]

_LINKS_MAX = 40
"""The kernel follows no more."""
_FIRST_LINE_BYTES = 256


def why_absent(program: str, *, is_seen: Callable[[Path], bool]) -> str | None:
    """Why a sandbox that sees the paths of `is_seen` has no such program though this machine does, and what to show.

    None where that is not the reason: this machine has none either, or all that it takes is seen. A program takes
    what its links lead to, and a script the interpreter that its first line names.
    """
    found = program if program.startswith("/") else shutil.which(program) if "/" not in program else None
    if found is None or not Path(found).exists():
        return None
    hidden = [path for path in _taken(Path(found)) if not is_seen(path)]
    if not hidden:
        return None
    folders = dict.fromkeys(_folder(path) for path in hidden)
    wanted = ", ".join(f"Path({str(folder)!r})" for folder in folders)
    what = ", ".join(map(str, dict.fromkeys(hidden)))
    advice = "show it" if program == found else f"show it, and name the program by its path {found}"
    return f"this machine has {what}, and the sandbox does not show it; {advice}: BubblewrapRuntime(shown=[{wanted}])"


def _taken(path: Path) -> Iterator[Path]:
    """The files that must be seen for this program to start."""
    yield from _links(path)
    interpreter = _interpreter(path)
    if interpreter is not None and interpreter.exists():
        yield from _links(interpreter)


def _links(path: Path) -> Iterator[Path]:
    yield path
    for _ in range(_LINKS_MAX):
        if not path.is_symlink():
            return
        path = path.parent.resolve() / path.readlink()
        yield path


def _interpreter(path: Path) -> Path | None:
    try:
        with path.open("rb") as file:
            start = file.read(_FIRST_LINE_BYTES)
    except OSError:  # one that may be run and not read is no script
        return None
    words = start.partition(b"\n")[0].removeprefix(b"#!").split() if start.startswith(b"#!") else []
    return Path(words[0].decode("utf-8", "replace")) if words else None


def _folder(path: Path) -> Path:
    """What to show for a file: the whole tree that its `bin` is in, for what stands there needs its libraries."""
    above = path.parent
    return above.parent if above.name in ("bin", "sbin") and len(above.parts) > 2 else path
