"""Wake-ups over LISTEN and NOTIFY: hints on a connection of their own, without which everything comes only later."""

import asyncio
import logging
from collections import Counter

import asyncpg
import pytest

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres import hints
from tests.contract.postgres.neighbours import LIMIT_SEC
from tests.contract.postgres.proxy import Link, Proxy, pass_all
from tests.contract.postgres.wire import Message
from tests.support.ledger import admit, cancel, poll
from tests.support.processes import until

NOTIFICATION = b"A"
NOTIFY = f"NOTIFY {hints.CHANNEL}"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "FIRST_BACKOFF_SEC", 0.01)
    monkeypatch.setattr(hints, "LONGEST_BACKOFF_SEC", 0.05)


async def assert_wakes(waiting: Ledger, writing: Ledger, rollout_id: str) -> None:
    """What one process writes wakes a waiter of the other."""
    await writing.submit(admit(rollout_id))
    with waiting.feed.watch(rollout_id) as watch:
        state = await waiting.submit(poll(rollout_id))
        changing = asyncio.create_task(watch.change(state, LIMIT_SEC))
        await writing.submit(cancel(rollout_id))
        assert (await changing).status == "cancelled"


class Listening:
    """Judges messages: counts those that begin to listen, and cuts their connections while it is told to."""

    def __init__(self, proxy: Proxy) -> None:
        self.refuses = False
        self.attempts = 0
        self.links: list[Link] = []
        proxy.judge = self.judge

    async def judge(self, link: Link, message: Message) -> bool:
        if not message.begins("LISTEN"):
            return True
        self.attempts += 1
        if self.refuses:
            link.cut()
            return False
        self.links.append(link)
        return True


async def test_listener_that_is_cut_off_listens_again(proxy: Proxy, ledger: Ledger) -> None:
    listening = Listening(proxy)
    other = await Ledger.open(proxy.url)
    try:
        for turn in range(1, 4):
            await until(lambda turn=turn: len(listening.links) == turn, what="a listener")  # type: ignore[misc]
            await assert_wakes(other, ledger, f"r-{turn}")
            listening.links[-1].cut()
    finally:
        await other.close()


async def test_feed_polls_while_nobody_lets_it_listen(proxy: Proxy, ledger: Ledger) -> None:
    listening = Listening(proxy)
    listening.refuses = True
    other = await Ledger.open(proxy.url)
    try:
        for turn in range(1, 4):
            await assert_wakes(other, ledger, f"r-{turn}")
        await until(lambda: listening.attempts > 3, what="more attempts to listen")
        listening.refuses = False
        await until(lambda: listening.links, what="a listener")
        await assert_wakes(other, ledger, "r-9")
    finally:
        await other.close()


async def test_listener_that_is_away_for_long_is_told_of_once(
    proxy: Proxy, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, hints.__name__)
    listening = Listening(proxy)
    listening.refuses = True
    other = await Ledger.open(proxy.url)
    try:
        await until(lambda: listening.attempts == 3, what="repeated attempts to listen")
        listening.refuses = False
        await until(lambda: "wake-ups is back" in caplog.text, what="the end of it in the log")
    finally:
        await other.close()
    away, back = [record.getMessage() for record in caplog.records if record.name == hints.__name__]
    assert away.startswith("the connection for wake-ups is away; the feed polls until it is back: ")
    assert back == "the connection for wake-ups is back"


async def test_listener_that_nothing_reaches_any_more_is_replaced(
    proxy: Proxy, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "ALIVE_SEC", 0.1)
    listening = Listening(proxy)
    other = await Ledger.open(proxy.url)
    await until(lambda: listening.links, what="a listener")

    async def swallow_the_first(link: Link, message: Message) -> bool:
        return link is not listening.links[0] and await listening.judge(link, message)

    proxy.judge = swallow_the_first
    try:
        await assert_wakes(other, ledger, "r-1")
        await until(lambda: len(listening.links) > 1, what="another listener")
        await assert_wakes(other, ledger, "r-2")
    finally:
        await other.close()


async def test_lost_notifications_make_it_later_only(proxy: Proxy, ledger: Ledger) -> None:
    lost: Counter[bytes] = Counter()
    listening = Listening(proxy)

    async def lose(link: Link, message: Message) -> bool:
        if not message.from_client and message.kind == NOTIFICATION:
            lost[message.kind] += 1
            return False
        return await listening.judge(link, message)

    proxy.judge = lose
    other = await Ledger.open(proxy.url)
    try:
        await until(lambda: listening.links, what="a listener")
        for turn in range(3):
            await assert_wakes(other, ledger, f"r-{turn}")
        await until(lambda: lost[NOTIFICATION] > 0, what="a lost notification")
    finally:
        await other.close()


async def test_notifications_are_empty_and_a_burst_of_commits_sends_few(
    database_url: str, proxy: Proxy, proxied: Ledger
) -> None:
    heard: list[str] = []
    listener = await asyncpg.connect(database_url)
    await listener.add_listener(hints.CHANNEL, lambda _connection, _pid, _channel, payload: heard.append(payload))
    sent = 0
    going_on = asyncio.Event()

    async def hold(_link: Link, message: Message) -> bool:
        nonlocal sent
        if message.asks(NOTIFY):
            sent += 1
            await going_on.wait()
        return True

    proxy.judge = hold
    try:
        for number in range(20):
            await proxied.submit(admit(f"r-{number}"))
        await until(lambda: sent == 1, what="a first notification")
        going_on.set()
        await until(lambda: len(heard) == 2, what="two notifications")
        # Renewals are nothing that anybody waits for; what comes after them is the next that is told.
        for number in range(20):
            await proxied.submit(poll(f"r-{number}"))
        await proxied.submit(cancel("r-0"))
        await until(lambda: len(heard) == 3, what="a third notification")
        assert sent == 3
        assert heard == ["", "", ""]
    finally:
        proxy.judge = pass_all
        await listener.close()
