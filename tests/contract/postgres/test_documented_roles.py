"""The database and the roles that the documents have one make: what they may, and what they may not."""

import re

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from tests.architecture.sources import ROOT
from tests.support.postgres import execute, private_server


def statements(document: str, first: str) -> list[str]:
    """Those of the block that begins so."""
    text = (ROOT / document).read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```sql\n({re.escape(first)}.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [statement for statement in block.split(";\n") if statement.strip()]


def test_owner_can_upgrade_and_analysts_see_views_alone() -> None:
    with private_server() as server:
        for statement in statements("docs/postgres.md", "CREATE ROLE rollbook "):
            # The server has a role of this name for other tests.
            execute(server.superuser_url(), re.sub(r"\brollbook\b", "documented", statement))
        place = make_url(server.superuser_url("documented"))
        owner, analyst = (
            place.set(username=role, password="…").render_as_string(hide_password=False)
            for role in ("documented", "analyst")
        )
        upgrade(parse_url(owner))

        create, grant = statements("docs/sql.md", "CREATE ROLE analyst ")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            execute(owner, create)
        execute(server.superuser_url(), create)
        execute(owner, grant)

        for view in re.findall(r"\b\w+_\w+\b", grant):
            assert execute(analyst, f"SELECT * FROM {view}") == []
        for hidden in ("events", "secrets", "members"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                execute(analyst, f"SELECT * FROM {hidden}")
