"""Processes whose database is away or hangs: an error for callers, an end in order when asked, and work again after."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from rollbook_client import RolloutClient, RolloutProtocolError
from tests.support.postgres import PrivateServer, private_server
from tests.support.processes import CHAT_URL, Deployment, folder_first

UNAVAILABLE = 503


@contextmanager
def stopped(server: PrivateServer) -> Iterator[None]:
    server.stop("immediate")
    try:
        yield
    finally:
        server.start()


@contextmanager
def hanging(server: PrivateServer) -> Iterator[None]:
    """All its processes are stopped where they are; connections are taken and never answered."""
    pids = [server.pid, *_children(server.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with private_server() as started:
        upgrade(parse_url(started.url()))
        yield started


@pytest.fixture
def deployment(server: PrivateServer, tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, server.url(), PYTHONPATH=folder_first("short_limits"))
    yield made
    made.close()


@pytest.fixture(params=[stopped, hanging])
def outage(request: pytest.FixtureRequest, server: PrivateServer) -> AbstractContextManager[None]:
    made: AbstractContextManager[None] = request.param(server)
    return made


async def admit(client: RolloutClient, rollout_id: str) -> Any:
    return await client.run_rollout([], CHAT_URL, rollout_id, label="run 0")


async def test_processes_answer_503_meanwhile_and_work_again_afterwards(
    deployment: Deployment, outage: AbstractContextManager[None], request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    deployment.api()
    deployment.scheduler()
    await deployment.answering()
    async with deployment.client() as client:
        assert (await admit(client, f"{name} before")).status == "success"
        with outage:
            with pytest.raises(RolloutProtocolError) as refused:
                await admit(client, f"{name} meanwhile")
            assert refused.value.status_code == UNAVAILABLE
        assert (await admit(client, f"{name} after")).status == "success"
    assert not any(started.ended for started in deployment.started)


async def test_processes_end_when_they_are_asked_to(
    deployment: Deployment, outage: AbstractContextManager[None]
) -> None:
    api, scheduler = deployment.api(), deployment.scheduler()
    await deployment.answering()
    await deployment.runners()
    with outage:
        codes = await asyncio.gather(api.stop(), scheduler.stop())
    assert set(codes) == {0}
    assert deployment.pids() == []
