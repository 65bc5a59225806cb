"""A thousand long polls at once: what they hold of the database, and that all of them are woken."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx

from rollbook.ledger.postgres.connecting import APPLICATION
from tests.support.processes import CHAT_URL, LIMIT_SEC, Deployment, Started, until

POLLS = 1_000
ADMITTING = 20


def held_of_the_database(deployment: Deployment, api: Started) -> int:
    """How many sessions the API has on PostgreSQL, and of a file how many descriptors: of it, its log or its lock."""
    if deployment.on_postgres:
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = ?"
        return int(deployment.number(sessions, APPLICATION))
    count = 0
    for descriptor in Path(f"/proc/{api.pid}/fd").iterdir():
        try:
            count += "ledger.sqlite3" in str(descriptor.readlink())
        except FileNotFoundError:  # closed while we looked
            continue
    return count


async def poll(deployment: Deployment, admission: dict[str, Any]) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", deployment.port)
    try:
        request = (
            f"GET /rollout/{admission['rollout_id']}/result HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"X-Osmosis-Rollout-Lease: {admission['polling_lease_token']}\r\n\r\n"
        )
        writer.write(request.encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        answer: dict[str, Any] = json.loads(body)
        return answer
    finally:
        writer.close()


async def admit(deployment: Deployment, numbers: range) -> list[dict[str, Any]]:
    """What the API answered to admissions on one connection, sent one after the other without waiting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", deployment.port)
    try:
        for number in numbers:
            fields = {"rollout_id": f"r-{number}", "initial_messages": [], "chat_completions_url": CHAT_URL}
            body = json.dumps(fields).encode()
            writer.write(b"POST /rollout HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        answers = []
        for _ in numbers:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 202"), head
            (length,) = re.findall(rb"content-length: (\d+)", head)
            answers.append(json.loads(await reader.readexactly(int(length))))
        return answers
    finally:
        writer.close()


async def test_parked_polls_hold_no_database_connection_and_are_all_woken(deployment: Deployment) -> None:
    api = deployment.api(result_wait_timeout_sec=50.0, polling_lease_timeout_sec=100.0)
    await deployment.answering()
    async with (
        asyncio.timeout(LIMIT_SEC),
        httpx.AsyncClient(base_url=deployment.url, timeout=None, verify=False) as http,
    ):
        parts = await asyncio.gather(*(admit(deployment, range(start, POLLS, ADMITTING)) for start in range(ADMITTING)))
        admissions = [admission for part in parts for admission in part]
        renewals = "SELECT count(*) FROM events WHERE type = 'lease_renewed'"
        first = asyncio.create_task(poll(deployment, admissions[0]))
        await until(lambda: deployment.number(renewals) == 1, what="a parked poll")
        few = held_of_the_database(deployment, api)
        assert few > 0

        others = [asyncio.create_task(poll(deployment, admission)) for admission in admissions[1:]]
        await until(lambda: deployment.number(renewals) == POLLS, what="a thousand parked polls")
        assert not any(task.done() for task in (first, *others))
        assert held_of_the_database(deployment, api) == few
        assert len(list(Path(f"/proc/{api.pid}/fd").iterdir())) > POLLS

        await http.post("/rollout/cancel", json={"all": True})
        answers = await asyncio.gather(first, *others)
    assert {answer["status"] for answer in answers} == {"cancelled"}
    assert [answer["rollout_id"] for answer in answers] == [admission["rollout_id"] for admission in admissions]
    deployment.check_ledger()
