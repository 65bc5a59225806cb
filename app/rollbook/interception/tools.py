"""What a rollout offers its programs as tools: the interface that the endpoint asks, whatever dialect they speak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct


class ToolResult(Struct, frozen=True):
    """What a tool answered."""

    text: str
    failed: bool = False
    """Whether the text says why there is no other answer."""


class ToolDesk(Protocol):
    """The tools of one rollout. The endpoint asks it on the event loop; calls may overlap."""

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as a chat completion request lists them; always the same ones."""
        ...

    async def result_of(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool. A call that fails, and one of a tool that is not there, has a result too.

        It is cancelled where nobody waits for it any more: the program has hung up or taken it back, or the session
        closes.
        """
        ...
