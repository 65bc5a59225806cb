"""`rollbook cancel`: the one command that writes into rollouts' histories."""

from __future__ import annotations

import asyncio
import getpass
import os
from typing import Annotated

import msgspec
import typer

from rollbook.ledger.commands import Cancel
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.urls import DEFAULT_DATABASE_URL
from rollbook_client.statuses import CancelDisposition

from . import options, output
from .tables import Column, put_table

LISTED_SEC = 15 * 60
"""``--prefix`` and ``--all`` also list rollouts that ended so recently."""

OVER = "over or unknown"
"""What ``not_found`` means, in words."""


def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", show_default=False)] = None,
    *,
    prefix: Annotated[str | None, typer.Option(help="Every rollout whose id starts so.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every rollout of the ledger.")] = False,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Ask to end rollouts: name ids, or --prefix, or --all.

    Queued ones end at once, running ones after their clean-up.
    """
    if (bool(ids), prefix is not None, everything).count(True) != 1:
        raise typer.BadParameter("name exactly one: ids, --prefix or --all", param_hint="ID...")
    command = Cancel(
        requested_by=f"cli:{user_name()}",
        ids=tuple(dict.fromkeys(ids)) if ids else None,
        prefix=prefix,
        everything=everything,
    )
    dispositions = asyncio.run(_submit(database_url, command))
    if json:
        output.put_json({"dispositions": dispositions})
    elif dispositions:
        _tell(dispositions, named=bool(ids))
    else:
        output.put("no rollouts to cancel\n")


def _tell(dispositions: dict[str, CancelDisposition], *, named: bool) -> None:
    """Of ids that nobody named, only those that there was something to cancel of."""
    over = [name for name, found in dispositions.items() if found == CancelDisposition.NOT_FOUND]
    left_out = set() if named else set(over)
    found = [
        (name, OVER if value == CancelDisposition.NOT_FOUND else value)
        for name, value in dispositions.items()
        if name not in left_out
    ]
    if found:
        put_table((Column("rollout"), Column("found")), found)
    if left_out:
        others = "1 other is" if len(over) == 1 else f"{len(over)} others are"
        output.put(f"{others} over already\n" if found else "no rollouts to cancel\n")


async def _submit(database_url: str, command: Cancel) -> dict[str, CancelDisposition]:
    ledger = await Ledger.open(database_url, migrate=False, with_keys=False)
    try:
        since = ledger.clock() - LISTED_SEC * 1_000_000
        return await ledger.submit(msgspec.structs.replace(command, listed_since=since))
    finally:
        await ledger.close()


def user_name() -> str:
    """Who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
