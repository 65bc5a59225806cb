"""Payloads that take long to send, and those that the server does not take at all."""

import asyncio

import pytest

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres import store
from rollbook.ledger.refusals import CommandFailed
from tests.contract.postgres.proxy import Link, Proxy
from tests.contract.postgres.wire import Message
from tests.support.ledger import admit, claim, finish, poll, scheduler
from tests.support.postgres import execute
from tests.support.processes import until

LARGE_BYTES = 200_000
SAMPLE = b'{"messages":[{"role":"user","content":"' + b"x" * LARGE_BYTES + b'"}],"reward":1.0}'

# True also where the server has ended the writer already.
_WAITED_LONG = """
    SELECT count(*) = 0 FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle in transaction'
    AND clock_timestamp() - state_change < interval '1 second'
"""


async def start(ledger: Ledger, *ids: str) -> None:
    """Attempts of these rollouts are under way."""
    await asyncio.gather(*(ledger.submit(admit(rollout_id)) for rollout_id in ids))
    await ledger.submit(scheduler("s-1"))
    await ledger.submit(claim(limit=len(ids)))


async def test_large_payload_has_time_to_arrive_over_a_slow_link(
    database_url: str, proxy: Proxy, proxied: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(proxied, "r-1")
    monkeypatch.setattr(store, "BEGIN", store.BEGIN.replace("session_timeout = '5s'", "session_timeout = '500ms'"))
    monkeypatch.setattr(store, "WRITE_LIMIT_SEC", 0.5)
    monkeypatch.setattr(store, "SLOWEST_LINK_BYTES_PER_SEC", LARGE_BYTES // 20)

    async def slow(_link: Link, message: Message) -> bool:
        if message.from_client and len(message.body) > LARGE_BYTES:
            await until(lambda: execute(database_url, _WAITED_LONG) == [(True,)], what="a second's silence")
        return True

    proxy.judge = slow
    assert (await proxied.submit(finish("r-1", sample=SAMPLE))).status == "success"
    assert execute(database_url, "SELECT count(*) FROM events WHERE type = 'rollout_finished'") == [(1,)]


async def test_payload_that_the_server_does_not_take_is_refused_alone(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(ledger, "r-1", "r-2")
    monkeypatch.setattr(store, "LARGEST_BATCH_BYTES", LARGE_BYTES)
    refused, taken, polled = await asyncio.gather(
        ledger.submit(finish("r-1", sample=SAMPLE)),
        ledger.submit(finish("r-2")),
        ledger.submit(poll("r-1")),
        return_exceptions=True,
    )
    assert isinstance(refused, CommandFailed)
    assert "send less" in str(refused)
    assert not isinstance(taken, BaseException)
    assert taken.status == "success"
    assert not isinstance(polled, BaseException)
    # As the scheduler does: without its payload, the result ends the rollout.
    assert (await ledger.submit(finish("r-1", status="failure", sample=None))).status == "failure"
