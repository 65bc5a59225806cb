"""`rollbook replay`, `audit`, `db` and `secret-key`: proving that the ledger is whole, and keeping it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

import rollbook_migrations
from rollbook.ledger.database import database_of
from rollbook.ledger.schema import check, upgrade
from rollbook.ledger.secrets import new_key
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, parse_url

from . import options, output

audit = typer.Typer(help="Check that no event was changed.", no_args_is_help=False)
database = typer.Typer(help="Make or migrate a ledger.", no_args_is_help=False)


def replay(
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the live rows; 1 if they differ.")] = False,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> int:
    """Fold the whole ledger anew from its events; with --verify, compare with the rows that are served."""
    from rollbook.ledger.replay import replay as fold
    from rollbook.ledger.replay import verify as compare

    if not verify:
        folded = fold(database_url)
        if json:
            output.put_json(folded)
        else:
            counts = ", ".join(f"{count} {status}" for status, count in sorted(folded.statuses.items()))
            rollouts = _count(sum(folded.statuses.values()), "rollout")
            output.put(f"{_count(folded.head.events, 'event')}, {rollouts} ({counts or 'none'})\n")
        return 0
    compared = compare(database_url)
    checked = _Checked(compared.events, compared.rollouts, compared.cut)
    return _verdict(checked, "difference", compared.differences, fine="every row is what its events say", json=json)


@audit.command("verify")
def audit_verify(*, database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL, json: options.Json = False) -> int:
    """Check hash chains, row heads, counts and the database file; 1 if something is wrong."""
    from rollbook.ledger.audit import inspect

    seen = inspect(database_url)
    checked = _Checked(seen.events, seen.rollouts, seen.cut)
    return _verdict(checked, "finding", seen.findings, fine="every event is as it was written", json=json)


@audit.callback()
@database.callback()
def _group() -> None:
    """Keep a group of one command a group."""


class _Checked(msgspec.Struct, frozen=True):
    """How much was looked at, and whether that ended early because enough was found."""

    events: int
    rollouts: int
    more: bool


def _verdict(checked: _Checked, name: str, found: Sequence[msgspec.Struct], *, fine: str, json: bool) -> int:
    if json:
        items = {f"{name}s": [_plain(item) for item in found]}
        output.put_json({"ok": not found, **msgspec.structs.asdict(checked), **items})
        return 1 if found else 0
    lines = [output.printable(str(item)) for item in found]
    said = f"{_count(len(found), name)}{' and perhaps more' if checked.more else ''}" if found else f"no {name}, {fine}"
    lines.append(f"checked {_count(checked.events, 'event')} of {_count(checked.rollouts, 'rollout')}: {said}")
    output.put("".join(f"{line}\n" for line in lines))
    return 1 if found else 0


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _plain(item: msgspec.Struct) -> dict[str, object]:
    """As JSON, with hashes as hex and the sentence that people read."""
    fields = msgspec.structs.asdict(item).items()
    return {**{key: value.hex() if isinstance(value, bytes) else value for key, value in fields}, "text": str(item)}


@database.command("upgrade")
def db_upgrade(*, database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL, json: options.Json = False) -> None:
    """Make the ledger, or bring its schema up to date."""
    upgrade(parse_url(database_url))
    _tell_schema(database_url, json=json)


@database.command("check")
def db_check(*, database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL, json: options.Json = False) -> None:
    """Tell whether the ledger's schema is the one this Rollbook works with."""
    check(parse_url(database_url))
    _tell_schema(database_url, json=json)


def _tell_schema(database_url: str, *, json: bool) -> None:
    database = database_of(parse_url(database_url))
    found = database.revision()
    if json:
        output.put_json(
            {"ledger": database.describe(), "revision": found, "current": found == rollbook_migrations.HEAD}
        )
    else:
        output.put(f"{database.describe()}: schema {found} is current\n")


def secret_key(*, json: options.Json = False) -> None:
    """Print a new secret key, for ROLLBOOK_SECRET_KEY."""
    key = new_key()
    if json:
        output.put_json({"secret_key": key})
    else:
        output.put(f"{key}\n")
