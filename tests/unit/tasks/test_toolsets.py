"""Tools: schemas from annotations, arguments as models write them, results as text, errors as results."""

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest

from rollbook.interception.messages import Request
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.toolsets import Tool, Toolset, ToolsetIndex, tool
from rollbook.traces.trace import Trace
from tests.unit.tasks.support import WAIT_SEC, given_to
from tests.unit.tasks.tool_types import Late


class Point(msgspec.Struct):
    x: int
    y: int = 0


async def search(
    query: Annotated[str, "what to look for"],
    kind: Literal["file", "text"] = "text",
    limit: Annotated[int, msgspec.Meta(ge=1, le=10)] = 5,
    at: Point | None = None,
    tags: list[str] = [],  # noqa: B006  # what is tested
) -> dict[str, Any]:
    """Look for something.

    Twice if need be.
    """
    return {"query": query, "kind": kind, "limit": limit, "at": at, "tags": tags}


async def fail() -> None:
    raise LookupError("no such thing")


def test_definition_is_made_of_name_docstring_and_annotations() -> None:
    [definition] = Toolset(search).definitions
    assert definition["type"] == "function"
    function = definition["function"]
    assert (function["name"], function["description"]) == ("search", "Look for something.\n\nTwice if need be.")
    parameters = function["parameters"]
    assert parameters["type"] == "object"
    assert parameters["required"] == ["query"]
    assert parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert properties["query"] == {"type": "string", "description": "what to look for"}
    assert properties["kind"] == {"enum": ["file", "text"], "default": "text"}
    assert properties["limit"] == {"type": "integer", "minimum": 1, "maximum": 10, "default": 5}
    assert properties["at"]["anyOf"] == [{"$ref": "#/$defs/Point"}, {"type": "null"}]
    assert parameters["$defs"]["Point"]["required"] == ["x"]


def test_tool_without_parameters_and_docstring_has_a_definition() -> None:
    assert Tool(fail).definition == {
        "type": "function",
        "function": {
            "name": "fail",
            "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        },
    }


async def test_arguments_are_checked_converted_and_filled_up() -> None:
    said = await Toolset(search).call("search", '{"query": "x", "at": {"x": 1}}')
    assert msgspec.json.decode(said) == {
        "query": "x",
        "kind": "text",
        "limit": 5,
        "at": {"x": 1, "y": 0},
        "tags": [],
    }
    assert await Toolset(search).call("search", {"query": "x", "at": {"x": 1}}) == said


async def test_default_is_each_calls_own() -> None:
    async def collect(into: list[int] = []) -> list[int]:  # noqa: B006  # what is tested
        into.append(1)
        return into

    tools = Toolset(collect)
    assert [await tools.call("collect", "{}"), await tools.call("collect", "")] == ["[1]", "[1]"]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("search", "{}", "error: the arguments of search do not fit its parameters: .*query"),
        ("search", '{"query": 3}', "error: the arguments of search do not fit its parameters: .*str"),
        ("search", '{"query": "x", "limit": 11}', "error: the arguments of search do not fit"),
        ("search", '{"query": "x", "other": 1}', "error: the arguments of search do not fit .*other"),
        ("search", "[]", "error: the arguments of search do not fit"),
        ("search", '{"query": ', "error: the arguments of search are not JSON"),
        ("search", "\ud800", "error: the arguments of search are not JSON"),
        ("find", "{}", "error: there is no tool 'find'; the tools are: search, fail"),
        ("fail", "{}", "error: LookupError: no such thing"),
    ],
)
async def test_what_goes_wrong_is_a_result(name: str, arguments: str, text: str) -> None:
    said = await Toolset(search, fail).call(name, arguments)
    assert re.match(text, said), said


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), ValueError()])
async def test_whatever_a_tool_raises_is_a_result(error: BaseException) -> None:
    async def ends() -> None:
        raise error

    assert (await Toolset(ends).call("ends", "{}")).startswith(f"error: {type(error).__name__}: ends raised")


async def test_cancellation_from_outside_is_raised() -> None:
    begun = asyncio.Event()

    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(Toolset(waits).call("waits", "{}"))
    async with asyncio.timeout(WAIT_SEC):
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize(
    ("value", "text"),
    [("as it is", "as it is"), (None, ""), (1.5, "1.5"), ([1, "ä"], '[1, "ä"]'), (Point(1), '{"x": 1, "y": 0}')],
)
async def test_result_is_text(value: Any, text: str) -> None:
    async def give() -> Any:
        return value

    assert await Toolset(give).call("give", "{}") == text


@pytest.mark.parametrize("value", [object(), float("nan")])
async def test_result_without_json_form_is_an_error(value: Any) -> None:
    async def give() -> Any:
        return value

    assert (await Toolset(give).call("give", "{}")).startswith("error: its result has no JSON form")


async def test_rollout_fills_in_what_is_its_own_and_the_model_does_not_see_it() -> None:
    tools = Late()
    assert list(tools.tools) == ["repeat", "recall"]
    assert list(tools.definitions[0]["function"]["parameters"]["properties"]) == ["text", "times"]
    bound = tools.bound(given_to(object(), state={"kept": 7}))
    assert await bound.call("repeat", '{"text": "a"}') == "aat-1"
    assert await bound.call("recall", "{}") == '{"kept": 7}'
    assert (await tools.call("repeat", '{"text": "a"}')).startswith("error: repeat cannot be called here: ")


async def test_model_cannot_set_what_the_rollout_fills_in() -> None:
    bound = Late().bound(given_to(object()))
    assert (await bound.call("repeat", '{"text": "a", "data": {}}')).startswith("error: the arguments of repeat")


async def test_tool_that_needs_a_runtime_says_where_there_is_none() -> None:
    async def look(runtime: Runtime, trace: Trace, path: str = ".") -> str:
        return path

    bound = Toolset(look).bound(given_to(object()))
    assert (await bound.call("look", "{}")).startswith("error: look cannot be called here: it asks for the runtime")


def test_methods_of_base_classes_are_tools_too_and_overrides_replace() -> None:
    class More(Late):
        @tool
        async def more(self) -> None: ...

        async def recall(self, state: Any) -> Any:
            return None

    assert More.tool_names == ("repeat", "more")


async def test_index_finds_the_tools_of_several_sets() -> None:
    index = ToolsetIndex([Toolset(search), Late().bound(given_to(object()))])
    assert [item["function"]["name"] for item in index.definitions] == ["search", "repeat", "recall"]
    assert await index.call("repeat", '{"text": "b", "times": 1}') == "bt-1"
    assert ToolsetIndex([]).definitions == []
    assert await ToolsetIndex([]).call("x", "{}") == "error: there is no tool 'x'; the tools are: none"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools are called 'search'"):
        Toolset(search, Tool(fail, name="search"))
    with pytest.raises(ValueError, match="two tools are called 'search'"):
        ToolsetIndex([Toolset(search), Toolset(search)])


def plain(query: str) -> str:
    return query


async def bare(query):  # type: ignore[no-untyped-def]
    return query


async def unknown(query: "NoSuchType") -> None:  # type: ignore[name-defined]  # noqa: F821
    ...


async def splat(*queries: str) -> None: ...


async def positional(query: str, /) -> None: ...


async def boundary(request: Request) -> None: ...


async def undescribed(task: asyncio.Task[None]) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (plain, "tool plain is not async; write `async def plain"),
        (
            bare,
            r"tool bare has no annotation for 'query'; annotate it, for example query: str, int or list\[str\] for ",
        ),
        (unknown, "tool unknown annotates 'query' as 'NoSuchType', which cannot be resolved"),
        (splat, r"tool splat takes \*queries"),
        (positional, "tool positional takes 'query' by position only"),
        (boundary, "tool boundary asks for a Request"),
        (undescribed, "tool undescribed has a parameter that cannot be described"),
        (lambda: None, "a tool's name has up to 64 letters"),
    ],
)
def test_function_that_cannot_be_a_tool_is_refused_with_its_name(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        Toolset(function)
    assert str(caught.value).endswith(f" ({__file__}, line {function.__code__.co_firstlineno})")


def test_data_is_the_models_where_it_is_text() -> None:
    async def write(data: str, state: str) -> None: ...

    assert list(Tool(write).parameters["properties"]) == ["data", "state"]
