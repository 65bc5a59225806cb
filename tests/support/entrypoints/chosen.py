"""A workflow and a grader whose behaviour each request chooses by its metadata.

`started` is a folder in which every execution makes the next file (`1`, `2`, …) with its process id in it; `until` is
a file whose appearance lets it go on, `{run}` in it being that number. The other keys are seen where they are obeyed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from rollbook import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)

workflow_config = AgentWorkflowConfig(name="chosen", concurrency=ConcurrencyConfig(max_concurrent=24))


LEFT_BEHIND: set[asyncio.Task[None]] = set()


class Given(SampleSource):
    """A sample made by hand."""

    def __init__(self, sample: RolloutSample) -> None:
        self._sample = sample

    async def get_sample(self) -> RolloutSample:
        return self._sample


def count_run(folder: str) -> int:
    """Note this execution in the folder; its number."""
    run = 0
    while True:
        run += 1
        draft = Path(folder, f".{run}.{os.getpid()}")
        draft.write_text(str(os.getpid()))
        try:
            os.link(draft, Path(folder, str(run)))
        except FileExistsError:
            continue
        finally:
            draft.unlink()
        return run


def match_for_ever() -> NoReturn:
    """Hold the interpreter's lock in C code."""
    re.match(r"(a+)+$", "a" * 64 + "b")
    raise AssertionError("the expression was meant to take for ever")


def allocate_without_end() -> NoReturn:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))


def secrets_in_every_form() -> str:
    """The rollout's own secrets, as careless code would show them."""
    context = get_rollout_context()
    assert context is not None and context.api_key is not None
    forms = [context.api_key, context.chat_completions_url]
    return " ".join([*forms, *(quote(form, safe="") for form in forms), repr({"headers": forms})])


def be_careless(how: str, *, prints: bool) -> None:
    """Show secrets in each way that ends up in some file, and then ``raise``, ``die`` or ``go on``."""
    text = secrets_in_every_form()
    if prints:
        print("out", text)
        sys.stderr.write(f"err {text}\n")
        sys.stderr.write(f"unended {text}")  # the end of the line comes with somebody else's words
    logging.getLogger("user.code").error("logged %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("user.code").exception("caught %s", text)
    # A task that nobody waits for tells of its failure when the rollout may be long over.
    late = asyncio.get_running_loop().create_task(fail_late(text))
    LEFT_BEHIND.add(late)
    late.add_done_callback(LEFT_BEHIND.discard)
    if how == "raise":
        raise RuntimeError(f"cannot reach {text}") from ValueError(text)
    if how == "die":
        sys.stdout.flush()
        os._exit(9)


async def fail_late(text: str) -> None:
    await asyncio.sleep(0.2)
    logging.getLogger("user.code").error("late %s", text)
    raise RuntimeError(text)


async def obey(plan: dict[str, Any], run: int) -> None:
    if "sleep_sec" in plan:
        await asyncio.sleep(plan["sleep_sec"])
    if "block_sec" in plan:
        time.sleep(plan["block_sec"])
    if plan.get("match_for_ever"):
        match_for_ever()
    if plan.get("allocate"):
        allocate_without_end()
    if "exit" in plan:
        os._exit(plan["exit"])
    if "careless" in plan:
        be_careless(plan["careless"], prints=plan.get("prints", True))
    if "until" in plan:
        gate = Path(plan["until"].replace("{run}", str(run)))
        while not gate.exists():  # noqa: ASYNC110  # another process gives the sign
            await asyncio.sleep(0.02)
    if "command" in plan:
        ended = await asyncio.to_thread(subprocess.call, ["sh", "-c", plan["command"]])
        raise RuntimeError(f"the command ended with {ended}")
    if "raise" in plan:
        raise RuntimeError(plan["raise"])


class Chosen(AgentWorkflow[AgentWorkflowConfig]):
    """Answers with `text`, or with the number of this execution; `sample` replaces fields of the sample."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Any:
        plan = ctx.metadata or {}
        run = count_run(plan["started"]) if "started" in plan else 0
        if plan.get("artifact"):
            assert ctx.artifacts_dir is not None
            (ctx.artifacts_dir / "notes.txt").write_text("nothing secret")
        await obey(plan, run)
        messages = [*ctx.prompt, {"role": "assistant", "content": plan.get("text", f"run {run}")}]
        if "sample" in plan:
            context = get_rollout_context()
            assert context is not None
            context.set_sample_source(Given(RolloutSample(messages=messages, **plan["sample"])))
            return None
        return messages


class Exact(Grader):
    """Rewards the answer that is the label; `grade` is a plan of its own."""

    async def grade(self, ctx: GraderContext) -> None:
        await obey((ctx.metadata or {}).get("grade", {}), 0)
        assert ctx.sample is not None
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] == ctx.label else 0.0)
