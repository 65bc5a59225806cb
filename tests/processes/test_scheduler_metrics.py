"""Schedulers tell their metrics on a port of their own: what is right, through restarts, and until they have ended."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.ledger.urls import SQLITE
from tests.support.commands import CommandLine
from tests.support.processes import CHAT_URL, CHOSEN, SCHEDULER_MODULE, Deployment, free_port, until
from tests.support.scrapes import Scrape, documented_metrics

LIMIT_SEC = 60
ACCEPTING = "SELECT accepting FROM members WHERE kind = 'scheduler'"
SLOTS = 24
"""Of one runner, by its workflow's own limit."""

# What ends before anything starts: one database is enough.
on_a_file = pytest.mark.parametrize("database", [SQLITE], indirect=True)


def scraped(port: int) -> Scrape:
    """What the scheduler at this port tells."""
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_SEC, verify=False)
    assert answer.status_code == 200
    return Scrape(answer.text)


async def told(port: int, name: str, value: float) -> Scrape:
    """What the scheduler at this port tells, once a metric is at least so large."""

    def look() -> list[Scrape]:
        with suppress(httpx.TransportError):
            found = scraped(port)
            return [found] if found.one(name) >= value else []
        return []

    (found,) = await until(look, what=f"{name} of {value:g}")
    return found


async def run(deployment: Deployment, rollout_id: str, **plan: Any) -> str:
    async with deployment.client() as client:
        result = await client.run_rollout([], CHAT_URL, rollout_id, metadata={"text": rollout_id, **plan})
    return result.status


async def test_scheduler_tells_what_it_does(deployment: Deployment) -> None:
    port = free_port()
    deployment.api()
    scheduler = deployment.command("scheduler", str(CHOSEN), "--runners", "2", "--metrics-port", str(port))
    await deployment.answering()
    found = await told(port, "rollbook_runners", 2)
    _, documented = documented_metrics()
    assert found.ours == documented
    assert found.one("process_resident_memory_bytes") > 0
    assert [await run(deployment, f"r-{number}") for number in range(3)] == ["success"] * 3
    found = scraped(port)
    ((member_id,),) = deployment.rows("SELECT member_id FROM members WHERE kind = 'scheduler'")
    assert found.labels("rollbook_scheduler_info")["scheduler"] == member_id
    assert found.one("rollbook_runner_slots") == 2 * SLOTS
    assert found.one("rollbook_scheduler_claimed_attempts_total") == 3
    assert found.one("rollbook_scheduler_append_seconds_count") >= found.one("rollbook_scheduler_batch_commands_count")
    assert found.one("rollbook_scheduler_batch_commands_count") > 3
    assert found.one("rollbook_scheduler_failed_batches_total") == 0
    assert found.one("rollbook_scheduler_contact_age_seconds") >= 0
    await told(port, "rollbook_scheduler_loop_lag_seconds_count", 1)
    assert await scheduler.stop() == 0, scheduler.output
    with pytest.raises(httpx.ConnectError):
        scraped(port)


async def test_what_still_runs_is_told_while_the_scheduler_drains(deployment: Deployment, tmp_path: Path) -> None:
    port, gate = free_port(), tmp_path / "gate"
    deployment.api()
    scheduler = deployment.scheduler(metrics_port=port, drain_sec=float(LIMIT_SEC))
    await deployment.answering()
    async with deployment.client() as client:
        handle = await client.run_rollout_async([], CHAT_URL, "r", metadata={"text": "r", "until": str(gate)})
        await handle.wait_for_running()
        scheduler.send(signal.SIGTERM)
        await until(lambda: not deployment.number(ACCEPTING), what="a beat of the scheduler that drains")
        found = scraped(port)
        assert found.one("rollbook_scheduler_running_attempts") == 1
        assert found.one("rollbook_runner_free_slots") == SLOTS - 1
        gate.touch()
        assert (await handle).status == "success"
    assert await scheduler.end() == 0, scheduler.output


async def test_scheduler_that_is_started_again_tells_its_metrics_at_the_same_port(deployment: Deployment) -> None:
    port = free_port()
    serve = deployment.serve("--scheduler-metrics-port", str(port))
    await deployment.answering()
    assert await run(deployment, "r-1") == "success"
    before = scraped(port)
    assert before.one("rollbook_scheduler_claimed_attempts_total") == 1
    (pid,) = deployment.pids(SCHEDULER_MODULE)
    os.kill(pid, signal.SIGKILL)
    assert await run(deployment, "r-2") == "success"
    after = scraped(port)
    assert after.one("rollbook_scheduler_claimed_attempts_total") == 1
    assert after.labels("rollbook_scheduler_info") != before.labels("rollbook_scheduler_info")
    assert await serve.stop() == 0, serve.output


@on_a_file
async def test_scheduler_listens_on_no_port_unless_it_is_asked_to(deployment: Deployment) -> None:
    deployment.scheduler()
    await deployment.runners()
    (pid,) = deployment.pids(SCHEDULER_MODULE)
    assert listening(pid) == []


def listening(pid: int) -> list[str]:
    """The TCP sockets of a process that listen, as the kernel lists them."""
    held = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    rows = [
        row.split() for family in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()
    ]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]


@on_a_file
async def test_port_that_was_taken_meanwhile_is_told_by_the_scheduler_itself(deployment: Deployment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        scheduler = deployment.scheduler(metrics_port=port)
        assert await scheduler.end() == 1
    assert f"cannot serve metrics on 127.0.0.1 port {port}: Address already in use" in scheduler.output
    assert deployment.number("SELECT count(*) FROM members") == 0


@pytest.fixture
def rollbook(database_url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("ROLLBOOK_DATABASE_URL", database_url)
    return CommandLine(database_url, capfd)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@on_a_file
@pytest.mark.parametrize(
    ("command", "option"),
    [(("scheduler",), "--metrics-port"), (("serve", "--port", "0"), "--scheduler-metrics-port")],
    ids=["scheduler", "serve"],
)
def test_taken_port_is_one_line_naming_the_option(
    rollbook: CommandLine, command: tuple[str, ...], option: str, taken_port: int
) -> None:
    refused = rollbook(*command, str(CHOSEN), option, str(taken_port))
    assert refused.code == 1
    host_option = option.replace("port", "host")
    assert f"cannot listen on 127.0.0.1 port {taken_port}: Address already in use" in refused.error_line
    assert refused.error_line.endswith(f"; choose another {option} or {host_option}")


@on_a_file
def test_port_of_the_api_is_none_for_metrics(rollbook: CommandLine) -> None:
    port = str(free_port())
    refused = rollbook("serve", str(CHOSEN), "--port", port, "--scheduler-metrics-port", port)
    assert refused.code == 1
    assert "choose another --scheduler-metrics-port" in refused.error_line


@on_a_file
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("scheduler", "flow.py", "--metrics-port", "0"), "--metrics-port"),
        (("scheduler", "flow.py", "--metrics-port", "65536"), "--metrics-port"),
        (
            ("serve", "--no-scheduler", "--queue", "q", "--scheduler-metrics-port", "9464"),
            "no scheduler runs here; pass --metrics-port to `rollbook scheduler`",
        ),
    ],
)
def test_wrong_use_is_one_line_with_exit_code_2(rollbook: CommandLine, arguments: tuple[str, ...], says: str) -> None:
    refused = rollbook(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.error_line
