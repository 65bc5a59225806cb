"""Where a rollout's files lie: one folder per rollout below one root, made when user code first asks for it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

ARTIFACTS_DIR_ENV = "ROLLBOOK_ARTIFACTS_DIR"
DEFAULT_ARTIFACTS_DIR = Path(".rollbook/artifacts")
_NAME_MAX_CHARS = 200
"""File systems end a name at 255 bytes; ids may be 1,024 bytes long."""


def artifacts_root() -> Path:
    """The absolute root for all rollouts, from the environment; absolute because user code may change its folder."""
    return Path(os.environ.get(ARTIFACTS_DIR_ENV) or DEFAULT_ARTIFACTS_DIR).absolute()


def folder_name(rollout_id: str) -> str:
    """The id, percent-encoded; a long one is cut and made unique by its digest."""
    name = quote(rollout_id, safe="")
    if len(name) > _NAME_MAX_CHARS:
        digest = hashlib.sha256(rollout_id.encode()).hexdigest()[:32]
        name = f"{name[: _NAME_MAX_CHARS - 33]}-{digest}"
    return name


def make_folder(root: Path, rollout_id: str) -> Path:
    """Make, if it is not there, and return the rollout's folder; raises ``OSError`` naming the remedy."""
    folder = root / folder_name(rollout_id)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"the artifacts folder cannot be made ({error.strerror}); "
            f"set {ARTIFACTS_DIR_ENV} to a folder this process may write to",
            str(folder),
        ) from error
    return folder
