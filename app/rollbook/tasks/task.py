"""What task authors write: set-up, hooks and scores of a kind of task, for data that describes each one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import get_original_bases
from typing import Any, ClassVar, Self, get_args, get_origin

from rollbook.backends.references import put_on_path, resolve
from rollbook.sdk.values import shown
from rollbook.tasks.data import TaskData
from rollbook.tasks.declared import check_declared, check_parts
from rollbook.tasks.hooks import Hooked
from rollbook.tasks.judge import Judge
from rollbook.tasks.methods import place_of
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.toolsets import Toolset
from rollbook.traces.trace import Trace

__all__ = ["Task", "load_rows", "load_task"]


class Task[DataT: TaskData](Hooked):
    """One kind of task. Subclass it, and mark methods with `reward`, `metric`, `stop` and `intercept`::

        class Sums(Task[Sum]):
            async def setup(self, data: Sum, runtime: Runtime) -> None:
                await runtime.write("numbers.txt", data.numbers.encode())

            @reward
            def right(self, trace: Trace, data: Sum) -> float:
                return float(sample_messages(trace)[-1]["content"] == data.answer)

    Hooks and scores ask for what they need by the annotated types of their parameters, or by the names `data`,
    `trace`, `runtime` and `state`. An object of a task class is shared by its rollouts; each works with a copy from
    `for_rollout`, so attributes that a method sets stay with its rollout.
    """

    data_type: ClassVar[type[TaskData]] = TaskData
    """What rows are read as; taken from ``Task[…]``."""
    state: Any = None
    """The rollout's own object; None outside of a rollout."""
    toolsets: Sequence[Toolset] = ()
    """Tools for the agent, where its harness offers them."""
    judges: Sequence[Judge] = ()
    """Models that give rewards of their own; their names must differ from those of the reward methods."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in get_original_bases(cls):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Task):
                [kind] = get_args(base)[:1]
                if isinstance(kind, type) and issubclass(kind, TaskData):
                    cls.data_type = kind
        check_declared(cls, Task, data=cls.data_type)
        check_names(cls.__name__, cls)

    async def setup(self, data: DataT, runtime: Runtime) -> None:
        """Prepare the runtime for this task; shares its deadline with the harness's set-up."""

    async def finalize(self, data: DataT, runtime: Runtime, trace: Trace) -> None:
        """Gather what scores will need, while the runtime is still there; runs once the program has ended well."""

    def new_state(self) -> Any:
        """The rollout's own object, which hooks and scores get as `state`: by default an empty `state_type`."""
        return type(self).state_type()

    def for_rollout(self) -> Self:
        """A shallow copy for one rollout, with a state of its own."""
        own = copy.copy(self)
        own.state = self.new_state()
        return own

    def rows(self) -> Iterable[DataT | Mapping[str, Any]]:
        """The tasks of this set, as data or as rows to be read as `data_type`. None by default."""
        return ()


def check_names(who: str, task: type[Task[Any]] | Task[Any]) -> None:
    """Raise ``TypeError`` where a judge has the name of a reward or metric, or of another judge, or is no judge."""
    check_parts(who, task)
    taken = {hook.name: f"@{hook.kind} {hook.name}" for hook in (*task.hooks.rewards, *task.hooks.metrics)}
    for judge in [] if isinstance(task.judges, property) else task.judges:
        if judge.name in taken:
            raise TypeError(
                f"{who}: the judge {judge.name!r} has the name of {taken[judge.name]}; "
                f"scores are kept by name, so give one of them another"
            )
        taken[judge.name] = "another judge"


def _made_by(task: Task[Any]) -> Iterable[Any]:
    made: object = task.rows()
    if isinstance(made, Iterable) and not isinstance(made, (str, bytes, Mapping)):
        return made
    raise TypeError(
        f"{type(task).__name__}.rows returned {shown(made)}; have it yield one row after the other, "
        f"or return a list of them{place_of(type(task).rows)}"
    )


def load_task(reference: str | type[Task[Any]] | Task[Any]) -> Task[Any]:
    """The task that ``"module:Name"`` or ``"path/to/file.py:Name"`` names: a class, which is called without
    arguments, or an object.

    Modules in the current folder are found too, and in the file's what lies beside it. Raises ``ValueError`` for a
    text of another form, ``ImportError`` if the module, the file or the name is not there, ``TypeError`` if it is no
    task.
    """
    if isinstance(reference, str):
        put_on_path(Path.cwd())
    found = resolve(reference)
    if isinstance(found, type) and issubclass(found, Task):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise TypeError(
                f"{reference} takes arguments ({error}); give them defaults, or name an object of it instead"
            ) from error
        found = found()
    if isinstance(found, Task):
        return found
    raise TypeError(f"{reference} is {shown(found)}, not a task; name a subclass of rollbook.tasks.Task, or its object")


def load_rows(task: Task[Any]) -> list[TaskData]:
    """The task's rows as its data, in their order.

    Raises ``ValueError`` naming the row and its field for one that does not fit, and for an id that comes twice;
    ``TypeError`` where `rows` returns no rows at all.
    """
    rows: list[TaskData] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(_made_by(task)):
        if isinstance(row, TaskData):
            data = row
        else:
            try:
                data = task.data_type.from_json(row)
            except ValueError as error:
                raise ValueError(f"row {number} of {type(task).__name__}: {error}") from error
        if data.id in seen:
            raise ValueError(
                f"rows {seen[data.id]} and {number} of {type(task).__name__} have the same id {data.id!r}; "
                f"give each task an id of its own"
            )
        seen[data.id] = number
        rows.append(data)
    return rows
