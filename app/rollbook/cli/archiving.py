"""`rollbook ledger archive`, `rollbook ledger verify-archive` and `rollbook backup`: the ledger in files."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import msgspec
import sqlalchemy as sa
import typer

from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, POSTGRES, parse_url

from . import options, output
from .failures import CommandError
from .verdicts import counted

ledger = typer.Typer(help="Keep the ledger small.", no_args_is_help=False)


@ledger.callback()
def _group() -> None:
    """Keep a group a group."""


@ledger.command("archive")
def archive(
    *,
    before: Annotated[
        str, typer.Option(metavar="TIME", help="Rollouts that ended before: 2030-01-31T12:00 (UTC), or ago: -30d.")
    ],
    to: Annotated[Path, typer.Option(metavar="FILE", help="A new file, such as 2030-01.jsonl.gz.", dir_okay=False)],
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Move the events of rollouts that are over to a file; what stands for them in the ledger can be verified.

    Their results cannot be polled any more. Where it was stopped, the same command goes on.
    """
    from rollbook.ledger.archives.moving import archive as move
    from rollbook.ledger.past import time_of

    try:
        before_at = time_of(before, now_us=time.time_ns() // 1_000)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--before") from error
    moved = move(database_url, before_at=before_at, to=to)
    if json:
        output.put_json({"file": str(to), **msgspec.structs.asdict(moved)})
    elif moved.archive_id is None:
        output.put("nothing to archive: no rollout that is still here ended before then\n")
    else:
        output.put(
            f"moved {counted(moved.events, 'event')} of {counted(moved.rollouts, 'rollout')} to {to}"
            f" ({moved.size_bytes} bytes), archive {moved.archive_id}\n"
        )


@ledger.command("verify-archive")
def verify_archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False)],
    *,
    alone: Annotated[bool, typer.Option("--alone", help="Without a ledger: only what the file says itself.")] = False,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> int:
    """Check an archive's hash chains, and that it is what the ledger says was moved to it; 1 if something is wrong."""
    from rollbook.ledger.archives.checking import check_file, check_file_of

    report = check_file(file) if alone else check_file_of(database_url, file)
    if json:
        output.put_json({"ok": not report.findings, **msgspec.structs.asdict(report)})
    else:
        fine = "every event is as it was written" + ("" if alone else ", and the ledger says so")
        said = "; ".join(report.findings) or fine
        looked = f"{counted(report.events, 'event')} of {counted(report.rollouts, 'rollout')}"
        output.put(f"{output.printable(f'checked {looked}: {said}')}\n")
    return 1 if report.findings else 0


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False)],
    *,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Copy an SQLite ledger while it is used, and check the copy. The secret key is not copied."""
    from rollbook.ledger.schema import check
    from rollbook.ledger.sqlite.backup import backup as copy
    from rollbook.ledger.sqlite.engines import key_path

    url = parse_url(database_url)
    if url.get_backend_name() == POSTGRES:
        # Without its password: pg_dump asks for it, or finds it in PGPASSWORD.
        address = sa.URL.create(POSTGRES, url.username, None, url.host, url.port, url.database, url.query)
        words = ("pg_dump", "--format=custom", f"--file={file}", address.render_as_string())
        raise CommandError(f"that is for SQLite; PostgreSQL has its own: {shlex.join(words)}")
    check(url)
    copied = copy(url, file)
    in_variable = bool(os.environ.get(KEY_VARIABLE, "").strip())
    key = KEY_VARIABLE if in_variable else str(key_path(url))
    if json:
        output.put_json({"file": str(file), **msgspec.structs.asdict(copied), "secret_key": key})
    else:
        output.put(
            f"{file}: {counted(copied.events, 'event')} up to position {copied.position}, checked\n"
            f"The secret key is not in it; rollouts that wait or run need it. Keep {key} elsewhere.\n"
        )
