"""Migrations of a file: what cannot be one, and where it may lie."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.schema import SchemaError, check, upgrade
from rollbook.ledger.urls import parse_url
from tests.support.ledger import ledger_path


def test_missing_ledger_is_not_made_by_looking_for_it(empty_url: str) -> None:
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        check(parse_url(empty_url))
    assert not ledger_path(empty_url).exists()


def test_file_that_is_no_database_is_named(empty_url: str) -> None:
    ledger_path(empty_url).write_bytes(b"certainly no database " * 100)
    with pytest.raises(SchemaError, match="--database-url"):
        check(parse_url(empty_url))
    with pytest.raises(SchemaError, match="--database-url"):
        upgrade(parse_url(empty_url))


def test_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LedgerUnavailable, match="folder"):
        upgrade(parse_url(f"sqlite:///{tmp_path}/file/ledger.sqlite3"))


def test_path_with_special_characters_works(tmp_path: Path) -> None:
    address = sa.URL.create("sqlite", database=f"{tmp_path}/a b%20c?d#e/ledger.sqlite3")
    upgrade(address)
    check(address)
