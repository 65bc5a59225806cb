"""A task whose annotations are text, one of them of a name that only type checkers import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbook.interception.messages import Request as Asked
from rollbook.tasks.hooks import intercept, reward, stop
from rollbook.tasks.task import Task

if TYPE_CHECKING:
    from rollbook.interception.messages import Response
    from rollbook.tasks.data import TaskData
    from rollbook.tasks.runtimes.base import Runtime
    from rollbook.traces.trace import Trace


class Late(Task["TaskData"]):
    @intercept
    def rename(self, asked: Asked) -> None: ...

    @stop
    async def enough(self, answer: Response, beside: Trace) -> bool:
        return bool(answer.message["content"] == "enough")

    @reward
    async def right(self, row: TaskData, whole: Trace, place: Runtime | None) -> float:
        return float(row.id == "t-1" and whole.num_turns == 1 and place is None)
