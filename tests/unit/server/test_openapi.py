"""The OpenAPI document by itself."""

from __future__ import annotations

import json
from typing import Any

from rollbook.server.openapi import ROUTES, openapi_document

DOCUMENT = openapi_document()


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*(references(part) for part in value.values()))
    if isinstance(value, list):
        return set().union(*(references(part) for part in value))
    return set()


def test_every_reference_leads_to_a_schema() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) <= known


def test_document_is_json() -> None:
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT


def test_every_operation_tells_its_errors_and_documents_its_path_parameters() -> None:
    for route in ROUTES:
        operation = DOCUMENT["paths"][route.path][route.method]
        assert "401" in operation["responses"]
        in_path = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
        assert all(f"{{{name}}}" in route.path for name in in_path)
        assert route.path.count("{") == len(in_path)


def test_operations_have_different_ids() -> None:
    ids = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


def test_query_parameters_tell_range_and_default() -> None:
    parameters = {p["name"]: p for p in DOCUMENT["paths"]["/events"]["get"]["parameters"]}
    assert parameters["limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1_000}
    assert parameters["after"]["description"]
