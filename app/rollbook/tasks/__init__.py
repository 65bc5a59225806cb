"""Tasks: what a rollout is to do, how it is prepared and scored, and the rollout that drives a program through it.

Names are imported when they are first asked for: what writes tasks needs the base install, what runs them the extra
`server`, for the endpoint in front of the model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollbook.interception.messages import Request, Response
    from rollbook.tasks.backend import TaskBackend
    from rollbook.tasks.data import NetworkPolicy, Resources, TaskData, Timeouts
    from rollbook.tasks.errors import RuntimeStoppedError, TaskError
    from rollbook.tasks.harnesses.base import Exchange, Harness, HarnessError
    from rollbook.tasks.harnesses.chat import ChatHarness
    from rollbook.tasks.harnesses.program import ProgramHarness
    from rollbook.tasks.harnesses.workflow import WorkflowHarness
    from rollbook.tasks.hooks import intercept, metric, reward, stop
    from rollbook.tasks.interaction import Interaction, alternate, interact
    from rollbook.tasks.judge import Judge
    from rollbook.tasks.limits import RolloutLimits
    from rollbook.tasks.rollout import Rollout
    from rollbook.tasks.runtimes import (
        BubblewrapRuntime,
        Completed,
        Runtime,
        RuntimeFailedError,
        RuntimeUnavailableError,
        SubprocessRuntime,
        UnsafePathError,
        UnsupportedNetworkError,
        borrowed,
    )
    from rollbook.tasks.task import Task, load_rows, load_task
    from rollbook.tasks.toolsets import Tool, Toolset, tool
    from rollbook.traces.sample import sample_messages
    from rollbook.traces.trace import Trace

__all__ = [
    "BubblewrapRuntime",
    "ChatHarness",
    "Completed",
    "Exchange",
    "Harness",
    "HarnessError",
    "Interaction",
    "Judge",
    "NetworkPolicy",
    "ProgramHarness",
    "Request",
    "Resources",
    "Response",
    "Rollout",
    "RolloutLimits",
    "Runtime",
    "RuntimeFailedError",
    "RuntimeStoppedError",
    "RuntimeUnavailableError",
    "SubprocessRuntime",
    "Task",
    "TaskBackend",
    "TaskData",
    "TaskError",
    "Timeouts",
    "Tool",
    "Toolset",
    "Trace",
    "UnsafePathError",
    "UnsupportedNetworkError",
    "WorkflowHarness",
    "alternate",
    "borrowed",
    "interact",
    "intercept",
    "load_rows",
    "load_task",
    "metric",
    "reward",
    "sample_messages",
    "stop",
    "tool",
]

_HOMES = {
    "BubblewrapRuntime": "rollbook.tasks.runtimes",
    "ChatHarness": "rollbook.tasks.harnesses.chat",
    "Completed": "rollbook.tasks.runtimes",
    "Exchange": "rollbook.tasks.harnesses.base",
    "Harness": "rollbook.tasks.harnesses.base",
    "HarnessError": "rollbook.tasks.harnesses.base",
    "Interaction": "rollbook.tasks.interaction",
    "Judge": "rollbook.tasks.judge",
    "NetworkPolicy": "rollbook.tasks.data",
    "ProgramHarness": "rollbook.tasks.harnesses.program",
    "Request": "rollbook.interception.messages",
    "Resources": "rollbook.tasks.data",
    "Response": "rollbook.interception.messages",
    "Rollout": "rollbook.tasks.rollout",
    "RolloutLimits": "rollbook.tasks.limits",
    "Runtime": "rollbook.tasks.runtimes",
    "RuntimeFailedError": "rollbook.tasks.runtimes",
    "RuntimeStoppedError": "rollbook.tasks.errors",
    "RuntimeUnavailableError": "rollbook.tasks.runtimes",
    "SubprocessRuntime": "rollbook.tasks.runtimes",
    "Task": "rollbook.tasks.task",
    "TaskBackend": "rollbook.tasks.backend",
    "TaskData": "rollbook.tasks.data",
    "TaskError": "rollbook.tasks.errors",
    "Timeouts": "rollbook.tasks.data",
    "Tool": "rollbook.tasks.toolsets",
    "Toolset": "rollbook.tasks.toolsets",
    "Trace": "rollbook.traces.trace",
    "UnsafePathError": "rollbook.tasks.runtimes",
    "UnsupportedNetworkError": "rollbook.tasks.runtimes",
    "WorkflowHarness": "rollbook.tasks.harnesses.workflow",
    "alternate": "rollbook.tasks.interaction",
    "borrowed": "rollbook.tasks.runtimes",
    "interact": "rollbook.tasks.interaction",
    "intercept": "rollbook.tasks.hooks",
    "load_rows": "rollbook.tasks.task",
    "load_task": "rollbook.tasks.task",
    "metric": "rollbook.tasks.hooks",
    "reward": "rollbook.tasks.hooks",
    "sample_messages": "rollbook.traces.sample",
    "stop": "rollbook.tasks.hooks",
    "tool": "rollbook.tasks.toolsets",
}
_NEEDS_SERVER = frozenset({"Interaction", "Rollout", "TaskBackend", "alternate", "interact"})


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rollbook.tasks' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if name not in _NEEDS_SERVER or (error.name or "").split(".")[0].startswith("rollbook"):
            raise  # a fault of this installation, which no extra would mend
        raise ImportError(
            f'rollbook.tasks.{name} needs {error.name}; install it with: pip install "rollbook[server]"',
            name=error.name,
        ) from error
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
