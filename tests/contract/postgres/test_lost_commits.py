"""A connection that breaks within a transaction, at its commit above all: nothing is lost and nothing written twice."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.clock import SharedClock
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres import store
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.urls import parse_url
from rollbook.ledger.writer import GroupCommitWriter
from tests.contract.postgres.proxy import Link, Proxy
from tests.contract.postgres.wire import Message
from tests.support.ledger import admit, poll
from tests.support.ledger import scheduler as register
from tests.support.postgres import execute

LIMIT_SEC = 30.0


def written(database_url: str) -> list[str]:
    return [row[0] for row in execute(database_url, "SELECT type FROM events ORDER BY position")]


def assert_whole(database_url: str) -> None:
    assert audit(database_url) == []
    assert verify_replay(database_url) == []


def once(act: Callable[[Link, Message], Awaitable[bool | None]]) -> Callable[[Link, Message], Awaitable[bool]]:
    """A judge that lets ``act`` judge until it has something to say."""
    acted = False

    async def judge(link: Link, message: Message) -> bool:
        nonlocal acted
        if not acted:
            said = await act(link, message)
            if said is not None:
                acted = True
                return said
        return True

    return judge


async def lose_answer(link: Link, message: Message) -> bool | None:
    """Cut once the server has said that it committed."""
    if not message.tells("COMMIT"):
        return None
    link.cut()
    return False


async def lose_commit(link: Link, message: Message) -> bool | None:
    """Cut before the server hears of the commit."""
    if not message.asks("COMMIT"):
        return None
    link.cut()
    return False


@pytest.mark.parametrize("lose", [lose_answer, lose_commit])
async def test_commit_whose_answer_is_lost_is_written_exactly_once(
    database_url: str, proxy: Proxy, proxied: Ledger, lose: Callable[[Link, Message], Awaitable[bool | None]]
) -> None:
    await proxied.submit(admit("before"))
    proxy.judge = once(lose)
    answers = await asyncio.gather(
        *(proxied.submit(admit(f"r-{number}")) for number in range(5)), proxied.submit(poll("before"))
    )
    assert [state.rollout_id for state in answers] == [*(f"r-{number}" for number in range(5)), "before"]
    assert written(database_url) == [*["rollout_admitted"] * 6, "lease_renewed"]
    assert (await proxied.submit(poll("r-4"))).seq == 2
    assert_whole(database_url)


async def test_commit_that_is_still_on_its_way_is_waited_for(database_url: str, proxy: Proxy, proxied: Ledger) -> None:
    await proxied.submit(admit("before"))
    looking = asyncio.Event()

    async def delay(link: Link, message: Message) -> bool | None:
        if not message.asks("COMMIT"):
            return None
        link.cut_client()

        async def look(_link: Link, following: Message) -> bool:
            if following.begins("BEGIN"):
                looking.set()
            return True

        proxy.judge = look
        await looking.wait()
        return True

    proxy.judge = once(delay)
    async with asyncio.timeout(LIMIT_SEC):
        assert (await proxied.submit(admit("r-1"))).seq == 1
    assert looking.is_set()
    assert written(database_url) == ["rollout_admitted", "rollout_admitted"]
    assert_whole(database_url)


@pytest.mark.parametrize(("lose", "landed"), [(lose_answer, True), (lose_commit, False)])
async def test_commit_in_doubt_of_a_database_that_stays_away_is_told_as_such(
    database_url: str,
    proxy: Proxy,
    proxied: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[Link, Message], Awaitable[bool | None]],
    landed: bool,
) -> None:
    monkeypatch.setattr(store, "RETRY_SEC", 0.3)
    await proxied.submit(admit("before"))

    async def lose_and_stay_away(link: Link, message: Message) -> bool | None:
        said = await lose(link, message)
        if said is not None:
            proxy.accepts = False
        return said

    proxy.judge = once(lose_and_stay_away)
    with pytest.raises(LedgerUnavailable, match="whether the last write landed is not known"):
        await proxied.submit(admit("r-1"))
    with pytest.raises(LedgerUnavailable, match="cannot be written"):
        await proxied.submit(admit("r-2"))
    proxy.accepts = True
    assert (await proxied.submit(admit("r-3"))).seq == 1
    assert (await proxied.reader.state("r-1") is not None) == landed
    assert await proxied.reader.state("r-2") is None
    assert_whole(database_url)


@pytest.mark.parametrize("lose", [lose_answer, lose_commit])
async def test_commit_in_doubt_is_looked_for_also_when_the_database_had_been_away(
    database_url: str,
    proxy: Proxy,
    proxied: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[Link, Message], Awaitable[bool | None]],
) -> None:
    await proxied.submit(admit("before"))
    proxy.accepts = False
    proxy.cut_all()
    with monkeypatch.context() as impatient:
        impatient.setattr(store, "RETRY_SEC", 0.3)
        with pytest.raises(LedgerUnavailable, match="cannot be written"):
            await proxied.submit(admit("while it is away"))
    proxy.accepts = True
    proxy.judge = once(lose)
    assert (await proxied.submit(admit("r-1"))).seq == 1
    assert written(database_url) == ["rollout_admitted", "rollout_admitted"]
    assert_whole(database_url)


async def test_commit_stays_in_doubt_when_connections_cannot_even_be_tried(
    database_url: str, proxy: Proxy, proxied: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_SEC", 0.3)
    await proxied.submit(admit("before"))

    async def lose_and_misconfigure(link: Link, message: Message) -> bool | None:
        said = await lose_answer(link, message)
        if said is not None:
            monkeypatch.setenv("PGSSLMODE", "no such mode")
        return said

    proxy.judge = once(lose_and_misconfigure)
    outcomes = await asyncio.gather(
        *(proxied.submit(admit(f"r-{number}")) for number in range(3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [LedgerUnavailable] * 3
    assert all("whether the last write landed is not known" in str(outcome) for outcome in outcomes)
    with pytest.raises(LedgerUnavailable, match="cannot be written now: no connection can be opened"):
        await proxied.submit(admit("r-3"))
    monkeypatch.delenv("PGSSLMODE")
    await proxied.submit(admit("r-4"))
    assert written(database_url) == ["rollout_admitted"] * 5
    assert_whole(database_url)


async def test_lost_answer_of_a_beat_is_asked_for_again(database_url: str, proxy: Proxy, proxied: Ledger) -> None:
    proxy.judge = once(lose_answer)
    assert await proxied.submit(register("s-1")) is True
    assert execute(database_url, "SELECT count(*) FROM members") == [(1,)]


class Cutter:
    """Cuts a connection at its n-th message that the rule concerns; the first transaction counts them."""

    def __init__(self, proxy: Proxy, *, half: bool) -> None:
        self._proxy = proxy
        self._half = half
        self._at = 0
        self.seen = 0
        proxy.judge = self.judge

    def at(self, number: int) -> None:
        self._at, self.seen = number, 0

    async def judge(self, link: Link, message: Message) -> bool:
        if message.kind in (b"", b"A"):
            return True
        self.seen += 1
        if self.seen == self._at:
            if self._half:
                link.send_half(message)
            link.cut()
            return False
        return True


@pytest.mark.parametrize("half", [False, True], ids=["between messages", "within a message"])
async def test_every_place_to_cut_a_transaction_leaves_it_written_once(
    database_url: str, proxy: Proxy, half: bool
) -> None:
    writer = store.PostgresCommitter(store.PostgresStore(parse_url(proxy.url), SharedClock()))
    submitting = GroupCommitWriter(writer, lambda _batch: None)
    submitting.start()
    cutter = Cutter(proxy, half=half)
    await submitting.submit(admit("r-0"))
    cutter.at(0)
    await submitting.submit(admit("r-00"))
    places = cutter.seen
    assert places > 8
    for number in range(1, places + 1):
        cutter.at(number)
        assert (await submitting.submit(admit(f"r-{number}"))).seq == 1
    await submitting.close()
    assert written(database_url) == ["rollout_admitted"] * (places + 2)
    assert_whole(database_url)
