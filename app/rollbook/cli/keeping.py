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
    url = parse_url(database_url)
    before = upgrade(url)
    database = database_of(url)
    current = rollbook_migrations.HEAD
    if json:
        output.put_json({"ledger": database.describe(), "revision": current, "before": before, "current": True})
    elif before is None:
        output.put(f"{database.describe()}: made, with schema {current}\n")
    elif before == current:
        output.put(f"{database.describe()}: schema {current} is current, nothing was to do\n")
    else:
        output.put(f"{database.describe()}: upgraded from schema {before} to {current}\n")


@database.command("check")
def db_check(*, database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL, json: options.Json = False) -> None:
    """Tell whether the ledger's schema is the one this Rollbook works with."""
    url = parse_url(database_url)
    check(url)
    place, current = database_of(url).describe(), rollbook_migrations.HEAD
    if json:
        output.put_json({"ledger": place, "revision": current, "current": True})
    else:
        output.put(f"{place}: schema {current} is current\n")


@database.command("accept-key")
def db_accept_key(*, database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL, json: options.Json = False) -> None:
    """Let the ledger go by the secret key given here, because the one before it is lost; what waits with that fails."""
    from rollbook.ledger.keyring import accept_key, shown

    url = parse_url(database_url)
    check(url)
    accepted = accept_key(database_of(url))
    if json:
        output.put_json(accepted)
        return
    key = f"the secret key {shown(accepted.fingerprint)} of {accepted.source}"
    output.put(f"{database_of(url).describe()} goes by {key}{' from now on' if accepted.changed else ' already'}\n")
    if accepted.lost:
        output.put(f"{accepted.lost} of {accepted.tried} rollouts that wait or run do not open with it, and fail\n")
    if accepted.changed and accepted.alive:
        output.put(f"processes that are alive: {accepted.alive}; restart them with this key\n")


def secret_key(*, json: options.Json = False) -> None:
    """Print a new secret key, for ROLLBOOK_SECRET_KEY."""
    key = new_key()
    if json:
        output.put_json({"secret_key": key})
    else:
        output.put(f"{key}\n")
