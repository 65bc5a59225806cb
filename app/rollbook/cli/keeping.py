"""`rollbook audit`, `db` and `secret-key`: proving that the ledger is whole, and keeping it so."""

from __future__ import annotations

import typer

import rollbook_migrations
from rollbook.ledger.database import database_of
from rollbook.ledger.schema import check, upgrade
from rollbook.ledger.secrets import new_key
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, parse_url

from . import options, output
from .verdicts import Checked, verdict

audit = typer.Typer(help="Check that no event was changed.", no_args_is_help=False)
database = typer.Typer(help="Make or migrate a ledger.", no_args_is_help=False)


@audit.command("verify")
def audit_verify(*, database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL, json: options.Json = False) -> int:
    """Check hash chains, row heads, counts and the database file; 1 if something is wrong."""
    from rollbook.ledger.audit import inspect

    seen = inspect(database_url)
    checked = Checked(seen.events, seen.rollouts, seen.archived, seen.cut)
    return verdict(checked, "finding", seen.findings, fine="every event is as it was written", json=json)


@audit.callback()
@database.callback()
def _group() -> None:
    """Keep a group of one command a group."""


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
