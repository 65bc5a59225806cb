"""What an API refuses to serve with."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from rollbook.server.service import ApiService, check_settings
from rollbook.settings import ApiSettings

GOOD = ApiSettings(database_url="sqlite:///x", queue="q")


@pytest.mark.parametrize(
    "changes",
    [
        {"result_wait_timeout_sec": 0.0},
        {"result_wait_timeout_sec": -1.0},
        {"result_wait_timeout_sec": math.nan},
        {"polling_lease_timeout_sec": math.inf},
        {"polling_lease_timeout_sec": math.nan},
        {"polling_lease_timeout_sec": 30.0},
        {"api_key": ""},
        {"api_key": " \t"},
        {"operator_api_key": ""},
        {"operator_api_key": " ", "api_key": "k"},
        {"operator_api_key": "k", "api_key": "k"},
        {"result_retention_sec": -0.1},
        {"result_retention_sec": math.nan},
        {"max_request_bytes": 0},
        {"max_attempts": 0},
        {"max_queue_depth": -1},
    ],
    ids=str,
)
def test_setting_out_of_range_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        check_settings(msgspec.structs.replace(GOOD, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"result_retention_sec": 0.0},
        {"max_queue_depth": 0},
        {"api_key": "k"},
        {"operator_api_key": "o"},
        {"max_attempts": 1},
    ],
    ids=str,
)
def test_setting_at_the_edge_of_its_range_is_taken(changes: dict[str, Any]) -> None:
    ApiService(None, msgspec.structs.replace(GOOD, **changes))
