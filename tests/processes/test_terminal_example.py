"""The example `examples/terminal`: ten tasks through server and client, done well, done badly, and not at all."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread

import pytest
from msgspec import Struct

from examples.terminal.policy import RIGHT, PolicyServer, commands_of
from rollbook.ledger.urls import POSTGRES, SQLITE
from rollbook.tasks import Trace, load_rows, load_task
from rollbook.traces.storage import loads
from rollbook_client import RolloutClient
from rollbook_client.messages import RolloutResultResponse
from tests.architecture.sources import ROOT
from tests.support.databases import NewLedger
from tests.support.processes import Deployment, deployed, free_port, until
from tests.support.runtimes import HAS_SANDBOXES

EXAMPLE = ROOT / "examples/terminal"
TASKSET = "examples.terminal.terminal:Terminal"
TASKS = sorted(RIGHT)
CHANGING = ("fix-script", "makefile", "permissions")
"""Tasks that are to change files which are there: nothing of that is damage."""
STOPS = {"git-archaeology": "gave_up", "makefile": "max_turns"}
"""How the wrong answers to these two end."""
MAX_TURNS = 12
LIMIT_SEC = 200.0
SOME = ("git-archaeology", "permissions", "sort-versions")
"""Enough to see that the way is the same: one that gives up, one that does damage, one that is to change files."""
ENTRIES = [
    ("backend", SQLITE, TASKS),
    ("backend", POSTGRES, SOME),
    ("unsandboxed", SQLITE, SOME),
]
if not HAS_SANDBOXES:
    ENTRIES = [("unsandboxed", SQLITE, TASKS)]

# One row for each rollout; the same text on both databases.
REPORT = """
SELECT rollout_id, status, boot_seconds, setup_seconds, agent_seconds, finalize_seconds, scoring_seconds,
       model_calls, failed_calls, input_tokens, output_tokens, reward, rewards, metrics, stop_condition, err_category
FROM rollout_reports
"""


class Report(Struct):
    """A row of it."""

    rollout_id: str
    status: str
    boot: float | None
    setup: float | None
    agent: float | None
    finalize: float | None
    scoring: float | None
    model_calls: int
    failed_calls: int
    input_tokens: int | None
    output_tokens: int | None
    reward: float | None
    rewards: str | None
    metrics: str | None
    stop_condition: str | None
    err_category: str | None


@pytest.fixture
def policies() -> Iterator[PolicyServer]:
    with PolicyServer() as server:
        thread = Thread(target=server.serve_forever, name="policies")
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


async def play(deployment: Deployment, urls: dict[str, str], tasks: Sequence[str]) -> dict[str, RolloutResultResponse]:
    """Each task against each of the policies, by ``kind.task``; one is enough for the broken policy."""
    rows = load_rows(load_task(TASKSET))
    assert [row.id for row in rows] == TASKS
    async with asyncio.timeout(LIMIT_SEC), RolloutClient(url=deployment.url) as client, asyncio.TaskGroup() as group:
        runs = {
            f"{kind}.{row.id}": group.create_task(
                client.run_rollout(
                    row.messages(), url, f"{kind}.{row.id}", label=row.id, metadata={"task": row.to_json()}
                )
            )
            for kind, url in urls.items()
            for row in rows
            if row.id in (tasks[:1] if kind == "broken" else tasks)
        }
    return {name: run.result() for name, run in runs.items()}


def traces(deployment: Deployment) -> dict[str, Trace]:
    """The stored traces, read without anything of the tasks."""
    found: dict[str, Trace] = {}
    for (payload,) in deployment.rows("SELECT payload FROM events WHERE type = 'trace_saved'"):
        event = json.loads(payload) if isinstance(payload, str) else payload
        trace = loads(zlib.decompress(base64.b64decode(event["data"])))
        assert trace.rollout_id not in found
        found[trace.rollout_id] = trace
    return found


@pytest.mark.timeout(LIMIT_SEC + 60)
@pytest.mark.parametrize(
    ("entry", "database", "tasks"), ENTRIES, ids=[f"{entry}-{database}" for entry, database, _ in ENTRIES]
)
async def test_tasks_are_told_apart_by_what_was_done(
    entry: str, database: str, tasks: Sequence[str], new_ledger: NewLedger, tmp_path: Path, policies: PolicyServer
) -> None:
    with deployed(database, new_ledger, tmp_path) as deployment:
        deployment.serve(entrypoint=EXAMPLE / f"entry.py:{entry}")
        await deployment.answering()
        results = await play(deployment, {kind: policies.url(kind) for kind in ("right", "wrong", "broken")}, tasks)
        reports = {report.rollout_id: report for report in (Report(*row) for row in deployment.rows(REPORT))}
        kept = traces(deployment)
        again = await scored_again(deployment) if tasks is TASKS else None
        deployment.check_ledger()

    assert reports.keys() == kept.keys() == results.keys()
    if again is not None:
        assert again == {name: (1, report.rewards) for name, report in reports.items() if name.startswith("wrong.")}
    for name, report in reports.items():
        kind, _, task = name.partition(".")
        check_row(report, kept[name])
        if kind == "broken":
            check_broken(report, results[name], kept[name])
        else:
            check_scored(report, results[name], right=kind == "right", task=task)
            assert report.model_calls == turns(kind, task)


async def scored_again(deployment: Deployment) -> dict[str, tuple[int, str | None]]:
    """The wrong answers' last scoring and its rewards, after one from the traces alone: the places are gone."""
    arguments = ("rescore", "--prefix", "wrong.", "--task", "terminal:Terminal")
    place = {"ROLLBOOK_DATABASE_URL": deployment.database_url, "PYTHONPATH": str(EXAMPLE)}
    command = deployment.start("rescore", "-m", "rollbook", *arguments, **place)
    assert await command.end() == 0, command.output
    found = deployment.rows("SELECT rollout_id, scoring, rewards FROM rollout_reports WHERE scoring > 0")
    return {rollout_id: (scoring, rewards) for rollout_id, scoring, rewards in found}


def turns(kind: str, task: str) -> int:
    """How many model calls a policy takes: its commands, and a last word unless it was stopped before."""
    commands = len(commands_of(kind, task))
    stop = STOPS.get(task) if kind == "wrong" else None
    return {None: commands + 1, "gave_up": commands, "max_turns": MAX_TURNS}[stop]


def check_row(report: Report, trace: Trace) -> None:
    """What one SELECT tells of a rollout is what its trace has."""
    spans = {span.stage: span for span in trace.spans}
    for stage in ("boot", "setup", "agent", "finalize", "scoring"):
        seconds = getattr(report, stage)
        span = spans.get(stage)
        assert (seconds is None) == (span is None), (report.rollout_id, stage)
        if span is not None:
            assert span.ended_at is not None, (report.rollout_id, stage)
            assert seconds == pytest.approx((span.ended_at - span.started_at) / 1e6, abs=1e-5)
    usages = [call.usage for call in trace.calls if call.usage is not None]
    assert report.model_calls == len(trace.calls)
    assert (report.input_tokens or 0) == sum(usage.input_tokens for usage in usages)
    assert (report.output_tokens or 0) == sum(usage.output_tokens for usage in usages)
    assert json.loads(report.rewards or "{}") == trace.rewards
    assert json.loads(report.metrics or "{}") == trace.metrics
    assert report.stop_condition == trace.stop_condition


def check_scored(report: Report, result: RolloutResultResponse, *, right: bool, task: str) -> None:
    damaged = not right and task == "sort-versions"
    damage = None if task in CHANGING else float(damaged)
    reward = float(right) - 0.5 * (damage or 0.0)
    assert (report.status, result.status, result.err_message) == ("success", "success", None)
    assert json.loads(report.rewards or "") == {"solved": float(right), "damage": damage}, report.rollout_id
    assert result.sample is not None
    assert (report.reward, result.sample.reward) == (reward, reward)
    assert report.stop_condition == (None if right else STOPS.get(task))
    assert None not in (report.boot, report.setup, report.agent, report.finalize, report.scoring)
    assert report.failed_calls == 0
    assert (report.input_tokens or 0) > 0 and (report.output_tokens or 0) > 0
    assert json.loads(report.metrics or "")["commands"] == sum(
        message["role"] == "tool" for message in result.sample.messages
    )


def check_broken(report: Report, result: RolloutResultResponse, trace: Trace) -> None:
    """A model that cannot be asked is no zero: nothing is scored, and the error says whose it is."""
    assert (report.status, report.err_category, report.reward, report.rewards) == ("failure", "http_error", None, None)
    assert report.model_calls == report.failed_calls == 3
    assert (report.finalize, report.scoring) == (None, None)
    assert result.sample is None and "the policy is broken" in (result.err_message or "")
    assert not trace.ok


async def test_commands_of_the_readme_work(tmp_path: Path, new_ledger: NewLedger) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [policy_line, serve_line, trainer_line] = re.findall(r"^(?:python|rollbook) .*examples/terminal/.*$", readme, re.M)
    assert policy_line == "python examples/terminal/policy.py"
    assert serve_line == "rollbook serve examples/terminal/entry.py:backend"
    assert trainer_line == "python examples/terminal/evaluate.py --policy http://127.0.0.1:9000/mixed/v1"
    port = free_port()
    with deployed(SQLITE, new_ledger, tmp_path) as deployment:
        policy = deployment.start("policy", str(EXAMPLE / "policy.py"), "--port", str(port))
        await until(lambda: "policies:" in policy.output, what="the policy listens")
        deployment.serve(entrypoint=EXAMPLE / f"entry.py:{'backend' if HAS_SANDBOXES else 'unsandboxed'}")
        await deployment.answering()
        where = ("--server", deployment.url, "--policy", f"http://127.0.0.1:{port}/mixed/v1")
        trainer = deployment.start("evaluate", str(EXAMPLE / "evaluate.py"), *where)
        assert await trainer.end() == 0, trainer.output
    printed = [line.split() for line in trainer.output.splitlines()]
    assert [(name.rpartition("-")[0], status, float(reward) == 1.0) for name, status, reward in printed] == [
        (task, "success", index % 2 == 0) for index, task in enumerate(TASKS)
    ]


def test_an_unknown_task_is_refused_and_reaches_no_other_folder() -> None:
    task = load_task(TASKSET)
    with pytest.raises(ValueError, match=r"there is no terminal task '../tasks/regex'"):
        task.data_type.from_json({"id": "../tasks/regex", "prompt": "x"})


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_its_files_and_both_kinds_of_answers(task: str) -> None:
    assert sorted(path.name for path in (EXAMPLE / "tasks" / task).iterdir()) == [
        "check.sh",
        "prompt.md",
        "setup.sh",
        "task.json",
    ]
    assert commands_of("right", task) != commands_of("wrong", task)
