"""The API process: its start, its orderly end, its sudden end, and what survives that."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from rollbook.ledger.urls import SQLITE
from rollbook_client.messages import POLLING_LEASE_HEADER
from tests.contract.server.processes import ApiProcess, end, free_port, read_response, running, start
from tests.contract.server.support import LIMIT_SEC, admission_body
from tests.support.databases import NewLedger
from tests.support.ledger import rows

# What happens before any ledger is asked is the same on each.
on_one_database = pytest.mark.parametrize("database", [SQLITE], indirect=True)
HASTY_PROGRAM = """
import sys
from rollbook.server import __main__, process
process.LAST_REQUESTS_SEC = 1
sys.exit(__main__.main())
"""
LONG = {"result_wait_timeout_sec": 500.0, "polling_lease_timeout_sec": 1_000.0}


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=LIMIT_SEC, verify=False) as client:
        yield client


def admit(process: ApiProcess, http: httpx.Client, rollout_id: str = "r-1") -> str:
    response = http.post(f"{process.url}/rollout", json=admission_body(rollout_id))
    assert response.status_code == 202
    token: str = response.json()["polling_lease_token"]
    return token


def poll_request(token: str) -> bytes:
    head = f"GET /rollout/r-1/result HTTP/1.1\r\nhost: api\r\n{POLLING_LEASE_HEADER}: {token}\r\n\r\n"
    return head.encode()


def seq(process: ApiProcess, http: httpx.Client) -> int:
    events = http.get(f"{process.url}/rollout/r-1/events").json()["events"]
    return int(events[-1]["seq"])


def parked(process: ApiProcess, http: httpx.Client, token: str) -> socket.socket:
    """A connection whose poll has renewed the lease and now waits."""
    before = seq(process, http)
    connection = process.connect()
    connection.sendall(poll_request(token))
    deadline = time.monotonic() + LIMIT_SEC
    while seq(process, http) == before:
        assert time.monotonic() < deadline, "the poll renewed no lease"
    return connection


def test_sigterm_answers_parked_polls_closes_idle_connections_and_exits_with_0(
    database_url: str, http: httpx.Client
) -> None:
    with running(database_url, **LONG) as process:
        token = admit(process, http)
        idle = process.connect()
        idle.sendall(b"GET /health HTTP/1.1\r\nhost: api\r\n\r\n")
        assert read_response(idle)[0] == 200
        silent = process.connect()
        stream = process.connect()
        stream.sendall(b"GET /events HTTP/1.1\r\nhost: api\r\naccept: text/event-stream\r\n\r\n")
        assert b"200 OK" in stream.recv(65_536)
        waiting = parked(process, http, token)
        process.child.send_signal(signal.SIGTERM)
        status, _, body = read_response(waiting)
        assert (status, b'"queued"' in body) == (200, True)
        assert process.wait() == 0
        assert idle.recv(1) == b""
        assert silent.recv(1) == b""
        for connection in (idle, silent, stream, waiting):
            connection.close()


def test_api_leaves_the_members_when_it_ends(database_url: str, http: httpx.Client) -> None:
    with running(database_url) as process:
        process.child.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert rows(database_url, "SELECT kind, stopped_at IS NULL FROM members") == [("api", False)]


def test_end_of_the_parent_ends_it_at_once_even_with_work_in_hand(database_url: str, http: httpx.Client) -> None:
    process = start(database_url, **LONG)
    process.await_ready()
    waiting = parked(process, http, admit(process, http))
    os.close(process.lifeline_fd)
    process.lifeline_fd = os.open(os.devnull, os.O_RDONLY)
    assert process.wait() == 3
    with waiting:
        assert waiting.recv(1) == b""
    end(process)


def test_kill_loses_nothing_that_was_acknowledged_and_old_tokens_stay_good(
    database_url: str, http: httpx.Client
) -> None:
    port = free_port()
    with running(database_url, port=port, **LONG) as process:
        token = admit(process, http)
        parked(process, http, token).close()
        process.child.kill()
        assert process.wait() == -signal.SIGKILL
    quick = {"result_wait_timeout_sec": 0.01, "polling_lease_timeout_sec": 1_000.0}
    with running(database_url, port=port, **quick) as process:
        again = http.get(f"{process.url}/rollout/r-1/result", headers={POLLING_LEASE_HEADER: token})
        assert (again.status_code, again.json()["status"]) == (200, "queued")
        assert http.post(f"{process.url}/rollout", json=admission_body("r-1")).status_code == 409


def test_restart_within_the_beat_limit_extends_the_leases_of_the_killed_one(
    database_url: str, http: httpx.Client
) -> None:
    with running(database_url, **LONG) as process:
        admit(process, http)
        process.child.kill()
        process.wait()
    with running(database_url, **LONG) as process:
        events = http.get(f"{process.url}/rollout/r-1/events").json()["events"]
        assert [event["type"] for event in events] == ["rollout_admitted", "lease_extended"]


@on_one_database
def test_taken_port_ends_it_with_one_line_that_says_what_to_do(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start(database_url, port=taken.getsockname()[1])
        assert process.wait() == 1
        errors = end(process)
    assert errors.count("\n") == 1
    assert "choose another --host or --port" in errors


@on_one_database
def test_setting_out_of_range_ends_it_with_one_line(database_url: str) -> None:
    process = start(database_url, polling_lease_timeout_sec=1.0)
    assert process.wait() == 1
    errors = end(process)
    assert errors.count("\n") == 1
    assert "polling_lease_timeout_sec is 1.0" in errors


@pytest.fixture(scope="module")
def left_alone(new_ledger: NewLedger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    """One API for those who only send it something, with a low limit for bodies."""
    with (
        new_ledger(SQLITE, tmp_path_factory.mktemp("left-alone")) as url,
        running(url, max_request_bytes=100_000) as process,
    ):
        yield process


def test_bytes_that_are_no_http_are_answered_with_a_json_object(left_alone: ApiProcess) -> None:
    with left_alone.connect() as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        status, headers, body = read_response(connection)
        assert (status, headers["content-type"]) == (400, "application/json")
        assert b'"detail"' in body


def test_body_far_over_the_limit_is_refused_unread(left_alone: ApiProcess) -> None:
    with left_alone.connect() as connection:
        # Announced and never sent: the answer cannot have waited for it.
        connection.sendall(b"POST /rollout HTTP/1.1\r\nhost: api\r\ncontent-length: 300000\r\n\r\n{")
        assert read_response(connection)[0] == 413


@on_one_database
def test_upload_that_never_ends_does_not_hold_the_shutdown_for_ever(database_url: str) -> None:
    with running(database_url, "-c", HASTY_PROGRAM) as process, process.connect() as connection:
        connection.sendall(b"POST /rollout HTTP/1.1\r\nhost: api\r\ncontent-length: 1000\r\n\r\n{")
        with process.connect() as other:
            other.sendall(b"GET /health HTTP/1.1\r\nhost: api\r\n\r\n")
            assert read_response(other)[0] == 200
        process.child.send_signal(signal.SIGTERM)
        status, _, body = read_response(connection)
        assert status == 503
        assert b"shutting down" in body
        assert process.wait() == 0


def test_polls_of_a_burst_of_connections_are_all_answered(database_url: str, http: httpx.Client) -> None:
    with running(database_url, result_wait_timeout_sec=0.2, polling_lease_timeout_sec=500.0) as process:
        token = admit(process, http)
        statuses: list[int] = []

        def one() -> None:
            with process.connect() as connection:
                connection.sendall(poll_request(token))
                statuses.append(read_response(connection)[0])

        threads = [threading.Thread(target=one) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_SEC)
        assert statuses == [200] * 30
