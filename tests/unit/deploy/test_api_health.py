"""The health check of an API's container, run as it is written, and the scrape of its metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rollbook.server.auth import COMMON_ENDINGS, OPERATOR_ENDINGS
from rollbook.server.openapi import ROUTES
from tests.unit.deploy.composition import ENVIRONMENT, ours, parsed, services

LIMIT_SEC = 60


class Seen:
    """The requests of a check: path and key of each."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None]] = []


@contextmanager
def answering(status: int) -> Iterator[tuple[int, Seen]]:
    """A server that answers everything with a status: its port, and what it saw."""
    seen = Seen()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.requests.append((self.path, self.headers["Authorization"]))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Tests print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], seen
        finally:
            server.shutdown()
            thread.join()


def check(port: int) -> int:
    """The exit code of the check, its port replaced."""
    kind, python, flag, script = ours()["api"]["healthcheck"]["test"]
    assert (kind, python, flag) == ("CMD", "python", "-c")
    assert script.count("8000") == 1
    environment = {**os.environ, **ours()["api"]["environment"]}
    command = [sys.executable, flag, script.replace("8000", str(port))]
    return subprocess.run(
        command, env=environment, timeout=LIMIT_SEC, stderr=subprocess.DEVNULL, check=False
    ).returncode


@pytest.mark.parametrize("status, healthy", [(200, True), (401, False), (503, False)])
def test_api_is_healthy_when_it_answers_200(status: int, healthy: bool) -> None:
    with answering(status) as (port, seen):
        assert (check(port) == 0) is healthy
    assert seen.requests == [("/health", f"Bearer {ENVIRONMENT['ROLLBOOK_OPERATOR_API_KEY']}")]


def test_api_that_takes_no_connection_is_not_healthy() -> None:
    with answering(200) as (port, _):
        pass
    assert check(port) != 0


def test_checked_path_is_served_and_opens_to_the_operators_key() -> None:
    assert "/health" in {route.path for route in ROUTES if route.method == "get"}
    assert "health" in COMMON_ENDINGS


def test_prometheus_scrapes_the_apis_with_the_operators_key() -> None:
    job = scrape_of("api")
    assert job["metrics_path"].removeprefix("/") in OPERATOR_ENDINGS
    assert job["authorization"]["type"] == "Bearer"
    assert "credentials" not in job["authorization"]
    (discovery,) = job["dns_sd_configs"]
    assert f"--port={discovery['port']}" in ours()["api"]["command"]


def test_prometheus_scrapes_the_schedulers_where_they_tell_their_metrics() -> None:
    job = scrape_of("scheduler")
    assert job["metrics_path"] == "/metrics"
    assert "authorization" not in job
    (discovery,) = job["dns_sd_configs"]
    assert f"--metrics-port={discovery['port']}" in ours()["scheduler"]["command"]
    assert "--metrics-host=0.0.0.0" in ours()["scheduler"]["command"]
    assert "ports" not in ours()["scheduler"]


def scrape_of(service: str) -> dict[str, Any]:
    """The one job that scrapes a service; every job scrapes services that there are."""
    jobs: list[dict[str, Any]] = parsed("prometheus.yaml")["scrape_configs"]
    assert len({job["job_name"] for job in jobs}) == len(jobs)
    named = {job["job_name"]: [name for found in job["dns_sd_configs"] for name in found["names"]] for job in jobs}
    assert {name for names in named.values() for name in names} <= set(services())
    (job,) = [job for job in jobs if named[job["job_name"]] == [service]]
    return job
