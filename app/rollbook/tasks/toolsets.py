"""Tools that a task gives its agent: async functions, described to the model by their annotations."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from rollbook.backends.failures import failure_of
from rollbook.backends.json_form import plain
from rollbook.interception.tools import ToolResult
from rollbook.sdk.values import shown
from rollbook.tasks.arguments import Given, Missing, arguments_of, tool_parameters
from rollbook.tasks.errors import ToolError
from rollbook.tasks.methods import place_of
from rollbook.tasks.patience import patiently
from rollbook.tasks.sources import check_source

__all__ = ["Tool", "Toolset", "ToolsetIndex", "tool"]

_MARK = "__rollbook_tool__"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tool[F: Callable[..., Any]](method: F, /) -> F:
    """Make an async method of a `Toolset` a tool, under the method's name; its docstring is what the model reads."""
    setattr(method, _MARK, True)
    return method


class Tool:
    """One function as a tool.

    Parameters annotated as the TaskData, the Runtime, the Trace or named `state` are filled in by the rollout and
    are not shown to the model; all others are described by their annotations, which must be of types that msgspec
    knows. ``Annotated[str, "what it is"]`` describes one in words. Raises ``TypeError`` for a function that is not
    async or has a parameter which cannot be described.
    """

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        who = f"tool {self.name}"
        self._function = function
        self.description = inspect.getdoc(function) or ""
        try:
            if not _NAME.fullmatch(self.name):
                raise TypeError(
                    f"{who}: a tool's name has up to 64 letters, digits, _ and -; give the function another"
                )
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{who} is not async; write `async def {self.name}(…)`, and await what takes time")
            self._given, own = tool_parameters(function, who=who)
            self._arguments, self.parameters = _described(own, who=who)
        except TypeError as error:
            raise TypeError(f"{error}{place_of(function)}") from error.__cause__

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as a chat completion request names it."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.parameters}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": function}

    async def call(self, arguments: str | Mapping[str, Any], given: Given | None = None) -> Any:
        """Call the function with what the model wrote and return its value.

        Raises `ToolError` for arguments that do not fit, and whatever the function raises.
        """
        values = self._read(arguments)
        try:
            positional, named = ([], {}) if not self._given else arguments_of(self._given, _needed(given))
        except Missing as error:
            raise ToolError(f"{self.name} cannot be called here: {error}") from error
        return await self._function(*positional, **named, **values)

    def _read(self, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
        try:
            if isinstance(arguments, str):
                # A model that has nothing to say may send nothing at all.
                read = msgspec.json.decode(arguments.encode("utf-8", "surrogatepass") if arguments.strip() else b"{}")
            else:
                read = dict(arguments)
            fields = msgspec.convert(read, self._arguments)
        except msgspec.ValidationError as error:
            raise ToolError(f"the arguments of {self.name} do not fit its parameters: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ToolError(f"the arguments of {self.name} are not JSON: {error}") from error
        return {name: getattr(fields, name) for name in self._arguments.__struct_fields__}


class Toolset:
    """Some tools together. Made of async functions, or subclassed with methods marked with `@tool`::

        class Files(Toolset):
            @tool
            async def read(self, path: str, runtime: Runtime) -> str:
                \"\"\"The text of a file.\"\"\"
                return (await runtime.read(path)).decode()

    Raises ``TypeError`` for a tool that cannot be described, ``ValueError`` for two of the same name.
    """

    tool_names: ClassVar[tuple[str, ...]] = ()
    """The methods that are tools, in the order of their definition."""

    def __init__(self, *functions: Callable[..., Any] | Tool) -> None:
        found = [item if isinstance(item, Tool) else Tool(item) for item in functions]
        found += [Tool(getattr(self, name)) for name in self.tool_names]
        self.given: Given | None = None
        self.tools: dict[str, Tool] = {}
        for item in found:
            if item.name in self.tools:
                raise ValueError(f"two tools are called {item.name!r}; give one of them another name")
            self.tools[item.name] = item

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_source(cls)
        names = {name: None for base in reversed(cls.__mro__) for name in vars(base)}
        cls.tool_names = tuple(name for name in names if getattr(inspect.getattr_static(cls, name), _MARK, False))

    def bound(self, given: Given) -> Toolset:
        """These tools for one rollout, which fills in what they ask of it."""
        own = copy.copy(self)
        own.given = given
        return own

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as a chat completion request lists them."""
        return ToolsetIndex([self]).definitions

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """See `ToolsetIndex.call`."""
        return await ToolsetIndex([self]).call(name, arguments)


class ToolsetIndex:
    """The tools of several toolsets, by name. Raises ``ValueError`` for two of the same name."""

    def __init__(self, toolsets: Iterable[Toolset]) -> None:
        self._tools: dict[str, tuple[Tool, Given | None]] = {}
        for toolset in toolsets:
            for item in toolset.tools.values():
                if item.name in self._tools:
                    raise ValueError(f"two tools are called {item.name!r}; give one of them another name")
                self._tools[item.name] = (item, toolset.given)

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as a chat completion request lists them."""
        return [item.definition for item, _ in self._tools.values()]

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Call a tool and return its result as text: text as it is, anything else as JSON, None as nothing.

        `arguments` are the model's: a JSON object, as text or read already. A call that fails, whether the tool
        raised or there is none of that name, is a result too, which begins with ``error:``. Only a cancellation from
        outside is raised.
        """
        return (await self.result_of(name, arguments)).text

    async def result_of(self, name: str, arguments: str | Mapping[str, Any]) -> ToolResult:
        """The same, with what became of the call beside the text; see `ToolDesk`."""
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task is not None else 0
        try:
            if name not in self._tools:
                known = ", ".join(self._tools) or "none"
                raise ToolError(f"there is no tool {name!r}; the tools are: {known}")
            item, given = self._tools[name]
            return ToolResult(_as_text(await patiently(item.call(arguments, given), f"tool {name}")))
        except ToolError as error:
            return ToolResult(f"error: {error}", failed=True)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > cancelled_before:
                raise
            text = f"error: {type(error).__name__}: {failure_of(error, name).message}"
            return ToolResult(text, failed=True)


def _needed(given: Given | None) -> Given:
    if given is None:
        raise Missing("it asks for parts of a rollout, and is called outside of one")
    return given


def _described(own: Mapping[str, tuple[Any, Any]], *, who: str) -> tuple[type[msgspec.Struct], dict[str, Any]]:
    """A struct with the parameters as its fields, and its JSON schema."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, (hint, default) in own.items():
        hint = _with_words(hint)
        fields.append((name, hint) if default is inspect.Parameter.empty else (name, hint, _default(default)))
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        (schema,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{who} has a parameter that cannot be described to a model: {error}") from error
    schema = components.pop("Arguments", schema)
    schema.pop("title", None)
    return struct, schema | ({"$defs": components} if components else {})


def _default(value: Any) -> Any:
    if isinstance(value, (list, dict, set)):  # a struct copies no default by itself
        return msgspec.field(default_factory=lambda: copy.deepcopy(value))
    return value


def _with_words(hint: Any) -> Any:
    """``Annotated[str, "words"]`` as msgspec has it."""
    if typing.get_origin(hint) is not typing.Annotated:
        return hint
    inner, *extras = typing.get_args(hint)
    for extra in extras:
        inner = typing.Annotated[inner, msgspec.Meta(description=extra) if isinstance(extra, str) else extra]
    return inner


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if value is None:
        return ""
    try:
        return json.dumps(plain(value), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"its result has no JSON form ({error}); have the tool return text: {shown(value)}") from error
