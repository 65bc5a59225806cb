"""Which rollouts a later scoring finds, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rollbook.ledger import scored
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.scored import Scorable, saved_trace
from rollbook_client.events import TraceSaved
from tests.support import ledger as make
from tests.support.saved_traces import played, run_rollout, saved


@pytest.fixture
def writer(database_url: str) -> Iterator[make.Writing]:
    with make.writing(database_url) as writer:
        yield writer


async def found(database_url: str, **selection: Any) -> list[Scorable]:
    ledger = await Ledger.open(database_url, with_keys=False)
    try:
        return [one async for one in scored.selected(ledger.reader, **selection)]
    finally:
        await ledger.close()


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        ({}, ["a-1", "a-2", "b-1", "waits"]),
        ({"prefix": "a-"}, ["a-1", "a-2"]),
        ({"prefix": "A-"}, []),
        ({"queue": "other"}, ["b-1"]),
        ({"label_prefix": "math/"}, ["a-1", "b-1"]),
        ({"label_prefix": "Math/"}, []),
        ({"label_prefix": "größe/1"}, ["a-2"]),
        ({"label_prefix": "%"}, []),
        ({"label_prefix": ""}, ["a-1", "a-2", "b-1"]),
        ({"prefix": "a-", "label_prefix": "math/"}, ["a-1"]),
        ({"prefix": "nul\0"}, []),
    ],
)
async def test_all_that_is_asked_must_fit(
    database_url: str, writer: make.Writing, monkeypatch: pytest.MonkeyPatch, selection: dict[str, str], ids: list[str]
) -> None:
    monkeypatch.setattr(scored, "PAGE", 2)
    labels = {"a-1": "math/1", "a-2": "größe/10", "b-1": "math/2", "waits": None}
    for name, label in labels.items():
        writer.batch(make.admit(name, label=label, queue="other" if name == "b-1" else make.QUEUE))
    assert [one.rollout_id for one in await found(database_url, **selection)] == ids


async def test_each_says_whether_it_can_be_scored(database_url: str, writer: make.Writing) -> None:
    run_rollout(writer, "scored", saved(played()), reward=0.25)
    run_rollout(writer, "bare", reward=None)
    writer.batch(make.admit("waits"))
    by_id = {one.rollout_id: one for one in await found(database_url)}
    assert [(one.active, one.archived, one.trace is None) for one in by_id.values()] == [
        (False, False, False),
        (False, False, True),
        (True, False, True),
    ]
    assert by_id["scored"].reward == 1.25  # the reward on the wire, and the one it recorded
    writer.do(make.rescore("scored", reward=0.5))
    assert {one.rollout_id: one.reward for one in await found(database_url)}["scored"] == 0.5


async def test_the_trace_is_that_of_the_last_attempt(database_url: str, writer: make.Writing) -> None:
    writer.batch(make.scheduler(), make.admit("r-1"))
    writer.batch(make.claim())
    writer.batch(make.record(saved(played("first"))))
    writer.batch(make.close("r-1"))
    writer.batch(make.claim())
    writer.batch(make.record(saved(played("second")), attempt=2))
    writer.batch(make.record(saved(played("third")), attempt=2))
    writer.batch(make.finish("r-1", attempt=2))
    ledger = await Ledger.open(database_url, with_keys=False)
    try:
        (one,) = [one async for one in scored.named(ledger.reader, ["r-1", "r-1"])]
        assert isinstance(one, Scorable)
        assert one.trace is not None
        event = await saved_trace(ledger.reader, one.trace)
        assert isinstance(event, TraceSaved)
        assert event.data == saved(played("third")).data
        assert await saved_trace(ledger.reader, 10_000) is None
    finally:
        await ledger.close()


async def test_ids_that_nobody_has_are_given_back(database_url: str, writer: make.Writing) -> None:
    writer.batch(make.admit("r-1"))
    ledger = await Ledger.open(database_url, with_keys=False)
    try:
        answers = [one async for one in scored.named(ledger.reader, ["none", "r-1", "nul\0"])]
    finally:
        await ledger.close()
    assert [one if isinstance(one, str) else one.rollout_id for one in answers] == ["none", "r-1", "nul\0"]
    assert [isinstance(one, str) for one in answers] == [True, False, True]
