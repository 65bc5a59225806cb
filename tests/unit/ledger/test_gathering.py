"""Reads that are made together: each caller gets its own answer, and one that goes away takes nobody's."""

import asyncio

import pytest

from rollbook.ledger.gathering import Gathering


class Reading:
    """A read that notes what it was asked for, and answers when it may."""

    def __init__(self, *, fails: Exception | None = None) -> None:
        self.asked: list[list[int]] = []
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self._fails = fails

    async def __call__(self, keys: list[int]) -> dict[int, str]:
        self.asked.append(keys)
        self.was_asked.set()
        await self.may_answer.wait()
        if self._fails is not None:
            raise self._fails
        return {key: str(key) for key in keys if key >= 0}


async def test_those_who_ask_in_one_turn_share_a_read() -> None:
    read = Reading()
    read.may_answer.set()
    gathering = Gathering(read, most=10)
    assert await asyncio.gather(*(gathering.get(key) for key in (1, 2, -1, 2))) == ["1", "2", None, "2"]
    assert await gathering.get(3) == "3"
    assert read.asked == [[1, 2, -1], [3]]


async def test_a_read_is_asked_for_no_more_than_its_limit() -> None:
    read = Reading()
    read.may_answer.set()
    gathering = Gathering(read, most=2)
    assert await asyncio.gather(*(gathering.get(key) for key in range(5))) == list("01234")
    assert read.asked == [[0, 1], [2, 3], [4]]


async def test_caller_that_goes_away_leaves_the_others_their_answers() -> None:
    read = Reading()
    gathering = Gathering(read, most=10)
    callers = [asyncio.create_task(gathering.get(key)) for key in (1, 2)]
    async with asyncio.timeout(10):
        await read.was_asked.wait()
        callers[0].cancel()
        read.may_answer.set()
        assert await callers[1] == "2"
        with pytest.raises(asyncio.CancelledError):
            await callers[0]


async def test_failed_read_fails_for_all_who_asked() -> None:
    read = Reading(fails=OSError("gone"))
    read.may_answer.set()
    gathering = Gathering(read, most=10)
    answers = await asyncio.gather(gathering.get(1), gathering.get(2), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["gone", "gone"]
