"""Operators' pages: selection, keysets, cuts."""

from __future__ import annotations

from typing import Any

from rollbook.ledger.commands import Score
from rollbook.ledger.reader import PAGE_BYTES
from tests.contract.server.support import Api


async def ids(api: Api, query: str = "") -> Any:
    body = (await api.http.get(f"/rollouts{query}")).json()
    return [rollout["rollout_id"] for rollout in body["rollouts"]]


async def test_rollouts_are_listed_the_newest_first_and_page_by_page(api: Api) -> None:
    for number in range(5):
        await api.admitted(f"r-{number}")
    seen = []
    before: int | None = 2**63 - 1
    while before is not None:
        body = (await api.http.get(f"/rollouts?limit=2&before={before}")).json()
        seen.append([rollout["rollout_id"] for rollout in body["rollouts"]])
        before = body["next"]
    assert seen == [["r-4", "r-3"], ["r-2", "r-1"], ["r-0"]]


async def test_page_that_ends_exactly_at_the_limit_is_the_last(api: Api) -> None:
    await api.admitted("r-1")
    await api.admitted("r-2")
    assert (await api.http.get("/rollouts?limit=2")).json()["next"] is None


async def test_rollouts_are_selected_by_status_queue_and_prefix(api: Api) -> None:
    await api.admitted("a-1")
    await api.run("a-1")
    await api.admitted("a-2")
    await api.admitted("b_1")
    assert await ids(api, "?status=success") == ["a-1"]
    assert await ids(api, "?status=queued") == ["b_1", "a-2"]
    assert await ids(api, "?prefix=a-") == ["a-2", "a-1"]
    assert await ids(api, "?prefix=b%25") == []
    assert await ids(api, "?queue=nobody") == []
    assert await ids(api, "?status=queued&prefix=a&queue=flow.py") == ["a-2"]
    assert await ids(api, "?status=unknown") == []


async def test_listed_rollout_shows_neither_lease_digest_nor_chain(api: Api) -> None:
    await api.admitted()
    (rollout,) = (await api.http.get("/rollouts")).json()["rollouts"]
    assert {"lease_digest", "head"}.isdisjoint(rollout)
    assert rollout["admitted_at"] > 1_600_000_000_000_000


async def test_listed_rollout_shows_what_it_was_asked_and_what_it_brought(api: Api) -> None:
    await api.admitted("r-1", label="42")
    await api.run("r-1", rewards=(Score("right", 1.0), Score("brief", 0.25), Score("lost", None)))
    await api.admitted("r-2")
    waiting, done = (await api.http.get("/rollouts")).json()["rollouts"]
    assert (waiting["active"], waiting["reward"], waiting["err_message"]) == (True, None, None)
    assert (done["active"], done["label"], done["err_category"]) == (False, "42", None)
    assert done["reward"] == 1.25


async def test_one_rollouts_events_follow_its_seq(api: Api) -> None:
    await api.admitted("other")
    await api.admitted()
    await api.run()
    first = (await api.http.get("/rollout/r-1/events?limit=2")).json()
    assert [event["type"] for event in first["events"]] == ["rollout_admitted", "attempt_started"]
    assert first["next_after"] == 2
    rest = (await api.http.get(f"/rollout/r-1/events?after={first['next_after']}")).json()
    assert [event["seq"] for event in rest["events"]] == list(range(3, 3 + len(rest["events"])))
    assert rest["events"][-1]["type"] == "attempt_ended"
    empty = (await api.http.get(f"/rollout/r-1/events?after={rest['next_after']}")).json()
    assert empty == {"events": [], "next_after": rest["next_after"]}


async def test_all_events_follow_the_position_and_none_is_missed(api: Api) -> None:
    for number in range(4):
        await api.admitted(f"r-{number}")
    after, seen = 0, []
    while True:
        page = (await api.http.get(f"/events?after={after}&limit=3")).json()
        if not page["events"]:
            break
        seen += [event["position"] for event in page["events"]]
        after = page["next_after"]
    assert seen == sorted(seen)
    assert len(seen) == 4
    assert page["next_after"] == after


async def test_page_of_huge_events_is_cut_but_never_empty(api: Api) -> None:
    for number in range(3):
        await api.admitted(f"r-{number}", metadata={"blob": "x" * (PAGE_BYTES // 2)})
    await api.admitted("huge", metadata={"blob": "x" * (PAGE_BYTES + 1)})
    sizes, after = [], 0
    while True:
        page = (await api.http.get(f"/events?after={after}")).json()
        if not page["events"]:
            break
        sizes.append(len(page["events"]))
        after = page["next_after"]
    assert sizes == [1, 1, 1, 1]


async def test_event_shows_its_envelope_and_its_payload_as_json(api: Api) -> None:
    await api.admitted()
    (event,) = (await api.http.get("/events")).json()["events"]
    assert set(event) == {
        "position",
        "number",
        "rollout_id",
        "seq",
        "type",
        "version",
        "recorded_at",
        "hash",
        "payload",
    }
    assert event["payload"]["rollout_id"] == "r-1"
    assert len(event["hash"]) == 64
