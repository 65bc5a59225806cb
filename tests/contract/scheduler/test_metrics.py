"""A scheduler's own metrics are right, and are told whatever its event loop does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import generate_latest

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.metrics.looplag import LoopLag
from rollbook.scheduler import member
from rollbook.scheduler.metrics import MetricsServer, SchedulerMetrics
from rollbook.scheduler.scheduler import Scheduler
from rollbook.scheduler.wire import Finished
from tests.support.outages import unwritable
from tests.support.processes import free_port
from tests.support.scheduling import PlayedPool, admit, only, settled
from tests.support.scrapes import Scrape, documented_metrics

LIMIT_SEC = 60


class CountedPool(PlayedPool):
    ready = 1


@pytest.fixture
def pool() -> CountedPool:
    return CountedPool(slots=2)


@pytest.fixture
def lag() -> LoopLag:
    return LoopLag()


@pytest.fixture
def metrics(ledger: Ledger, scheduler: Scheduler, pool: CountedPool, lag: LoopLag) -> SchedulerMetrics:
    return SchedulerMetrics(ledger, scheduler, pool, lag_sec=lag.lag_sec)


def scrape(metrics: SchedulerMetrics) -> Scrape:
    return Scrape(generate_latest(metrics).decode())


@contextmanager
def served(metrics: SchedulerMetrics) -> Iterator[str]:
    port = free_port()
    server = MetricsServer(metrics, host="127.0.0.1", port=port)
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        server.close()


def get(url: str) -> httpx.Response:
    """Ask on this very thread, and hold up whatever event loop runs on it."""
    return httpx.get(url, timeout=LIMIT_SEC, verify=False)


def test_scheduler_says_which_it_is(metrics: SchedulerMetrics, scheduler: Scheduler) -> None:
    labels = scrape(metrics).labels("rollbook_scheduler_info")
    assert labels.keys() == {"scheduler", "host", "version"}
    assert (labels["scheduler"], labels["version"]) == (scheduler.member_id, version("rollbook"))


async def test_slots_and_attempts_are_told_as_they_come_and_go(
    ledger: Ledger, pool: CountedPool, metrics: SchedulerMetrics
) -> None:
    def told() -> dict[str, float]:
        found = scrape(metrics)
        return {
            "slots": found.one("rollbook_runner_slots"),
            "free": found.one("rollbook_runner_free_slots"),
            "running": found.one("rollbook_scheduler_running_attempts"),
            "claimed": found.one("rollbook_scheduler_claimed_attempts_total"),
        }

    assert scrape(metrics).one("rollbook_runners") == 1
    assert told() == {"slots": 2, "free": 2, "running": 0, "claimed": 0}
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    assert told() == {"slots": 2, "free": 1, "running": 1, "claimed": 1}
    pool.end(only(pool), Finished(only(pool), "success"))
    await settled(ledger, "r", lambda state: not state.active)
    assert told() == {"slots": 2, "free": 2, "running": 0, "claimed": 1}


async def test_contact_is_as_old_as_the_last_accepted_beat(
    scheduler: Scheduler, metrics: SchedulerMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(member, "time", SimpleNamespace(monotonic=lambda: now + 90))
    assert scrape(metrics).one("rollbook_scheduler_contact_age_seconds") == pytest.approx(90, abs=LIMIT_SEC / 2)


async def test_commands_and_batches_are_measured(ledger: Ledger, metrics: SchedulerMetrics) -> None:
    def appended() -> float:
        return scrape(metrics).one("rollbook_scheduler_append_seconds_count")

    before = appended()
    assert before > 0  # it has registered
    await admit(ledger, "r")
    assert appended() > before
    assert scrape(metrics).one("rollbook_scheduler_batch_commands_count") > 0


async def test_batches_that_fail_are_counted(database_url: str, ledger: Ledger, metrics: SchedulerMetrics) -> None:
    with unwritable(database_url), pytest.raises(LedgerUnavailable):
        await admit(ledger, "r")
    assert scrape(metrics).one("rollbook_scheduler_failed_batches_total") > 0


def test_documented_metrics_are_those_that_are_told(metrics: SchedulerMetrics) -> None:
    _, documented = documented_metrics()
    assert documented == scrape(metrics).ours


async def test_a_scheduler_whose_loop_is_held_up_answers(metrics: SchedulerMetrics) -> None:
    with served(metrics) as url:
        answer = get(url)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert Scrape(answer.text).one("rollbook_runner_slots") == 2


async def test_closing_ends_the_thread_and_gives_the_port_back(metrics: SchedulerMetrics) -> None:
    before = threading.active_count()
    with served(metrics) as url:
        assert threading.active_count() > before
    assert threading.active_count() == before
    with pytest.raises(httpx.ConnectError):
        get(url)
