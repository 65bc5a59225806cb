"""The Model Context Protocol, the part that tools need: JSON-RPC messages to a `ToolDesk`, and its answers.

Of its streamable HTTP this has what is in the bodies; `rollbook.interception.tool_calls` has the rest.
"""

from __future__ import annotations

from typing import Any, Final, TypeGuard

from msgspec import Struct

from rollbook.interception import json_codec
from rollbook.interception.tools import ToolDesk
from rollbook.version import rollbook_version

PATH: Final = "/mcp"
VERSIONS: Final = ("2025-11-25", "2025-06-18")
"""Of the protocol, the newest first. Those before had batches, the ones after have no `initialize`."""

INITIALIZE: Final = "initialize"
CALL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
TAKEN_BACK: Final = -32000

type Id = str | int | float


class RpcError(Exception):
    """What is answered in place of a result."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Message(Struct, frozen=True):
    """What a program sent."""

    method: str | None
    """None for an answer to a question; none is ever asked here."""
    id: Id | None
    """None where no answer is wanted."""
    params: dict[str, Any]


def read(body: bytes) -> Message:
    """The one message of a body.

    Raises:
        RpcError: this is none.
    """
    try:
        value = json_codec.decode(body)
    except ValueError as error:
        raise RpcError(PARSE_ERROR, f"the body is no JSON: {error}") from error
    if isinstance(value, list):
        raise RpcError(INVALID_REQUEST, "the body is a list; send each message in a request of its own")
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'the body is no JSON-RPC message; send an object with "jsonrpc": "2.0"')
    method = value.get("method")
    if method is None and ("result" in value or "error" in value):
        return Message(None, None, {})
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "the message has no method")
    if "id" in value and not is_id(value["id"]):
        raise RpcError(INVALID_REQUEST, "the message's id must be text or a number")
    params = value.get("params", {})
    if not isinstance(params, dict):
        raise RpcError(INVALID_REQUEST, "the message's params must be an object")
    return Message(method, value.get("id"), params)


def is_id(value: Any) -> TypeGuard[Id]:
    """Whether a request may have this id."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


async def result_of(message: Message, desk: ToolDesk) -> dict[str, Any]:
    """The result of a request.

    Raises:
        RpcError: it has none.
    """
    match message.method:
        case "initialize":
            asked = message.params.get("protocolVersion")
            if not isinstance(asked, str):
                raise RpcError(INVALID_PARAMS, "initialize needs a protocolVersion")
            return {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "rollbook", "version": rollbook_version()},
            }
        case "ping":
            return {}
        case "tools/list":
            if message.params.get("cursor") is not None:
                raise RpcError(INVALID_PARAMS, "there is no such cursor: the list has one page")
            return {"tools": [_listed(definition) for definition in desk.definitions]}
        case "tools/call":
            name, arguments = message.params.get("name"), message.params.get("arguments")
            if not isinstance(name, str):
                raise RpcError(INVALID_PARAMS, "tools/call needs the name of a tool")
            if arguments is not None and not isinstance(arguments, dict):
                raise RpcError(INVALID_PARAMS, "the arguments of tools/call must be an object")
            result = await desk.result_of(name, arguments or {})
            return {"content": [{"type": "text", "text": result.text}], "isError": result.failed}
    raise RpcError(METHOD_NOT_FOUND, f"there is no method {message.method}")


def result_body(number: Id, result: dict[str, Any]) -> bytes:
    """The answer to a request."""
    return json_codec.encode({"jsonrpc": "2.0", "id": number, "result": result})


def error_body(number: Id | None, error: RpcError) -> bytes:
    """The answer to a request that has no result, or to what is none."""
    return json_codec.encode({"jsonrpc": "2.0", "id": number, "error": {"code": error.code, "message": error.message}})


def _listed(definition: dict[str, Any]) -> dict[str, Any]:
    function = definition["function"]
    listed = {"name": function["name"], "inputSchema": function["parameters"]}
    return listed | ({"description": function["description"]} if "description" in function else {})
