"""Tools whose annotations are text, as they are in modules that put annotations off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollbook.tasks.toolsets import Toolset, tool

if TYPE_CHECKING:
    from rollbook.tasks.data import TaskData


class Late(Toolset):
    @tool
    async def repeat(self, text: str, data: TaskData, times: int = 2) -> str:
        """Say it again."""
        return text * times + data.id

    @tool
    async def recall(self, state) -> Any:  # type: ignore[no-untyped-def]  # given by its name
        return state
