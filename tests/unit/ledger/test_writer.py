"""What goes into a batch: bounded in commands and in bytes, the light ones first, and everybody in turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger import writer as writer_module
from rollbook.ledger.batch import Committed
from rollbook.ledger.database import Landed, Take
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.writer import LIGHT_BYTES, MAX_BATCH, MAX_BATCH_BYTES, GroupCommitWriter
from tests.support.ledger import admit, finish, poll

THIRD = MAX_BATCH_BYTES // 3
BEAT = cmd.Beat(member_id="s-1")


class Batches:
    """A committer that writes nothing down but what it was given, a batch in each turn of the loop."""

    def __init__(self) -> None:
        self.sizes: list[list[int]] = []
        self.names: list[list[str]] = []
        self._landed: Landed | None = None

    def start(self, landed: Landed) -> None:
        self._landed = landed

    def commit(self, take: Take) -> None:
        commands = take()
        self.sizes.append([command.size_bytes for command in commands])
        self.names.append([getattr(command, "rollout_id", "beat") for command in commands])
        assert self._landed is not None
        asyncio.get_running_loop().call_soon(self._landed, Committed([None] * len(commands), 0, 0, {}))

    def guard_leases(self, silence_us: int) -> None:
        raise AssertionError("no API")

    def stop_guarding(self) -> None:
        raise AssertionError("no API")

    async def close(self) -> None:
        return None


async def batches_of(*commands: cmd.Command[Any]) -> Batches:
    """How commands that are submitted at once are cut into batches."""
    batches = Batches()
    writer = GroupCommitWriter(batches, lambda _batch: None)
    writer.start()
    await asyncio.gather(*(writer.submit(command) for command in commands))
    await writer.close()
    return batches


class LateBatches(Batches):
    """A committer that takes its batches when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.takes: list[Take] = []

    def commit(self, take: Take) -> None:
        self.takes.append(take)

    def go_on(self) -> None:
        """Take the batch whose turn it is, and carry it out."""
        super().commit(self.takes.pop())

    def fail(self) -> None:
        """Give the batch up before it is taken."""
        self.takes.pop()
        assert self._landed is not None
        self._landed(LedgerUnavailable("the ledger cannot be written now"))


def result(rollout_id: str, size: int) -> cmd.FinishAttempt:
    return finish(rollout_id, sample=b"x" * size)


async def test_batch_ends_before_it_has_too_many_bytes() -> None:
    batches = await batches_of(*(result(f"r-{number}", THIRD) for number in range(7)))
    assert batches.names == [["r-0", "r-1", "r-2"], ["r-3", "r-4", "r-5"], ["r-6"]]


async def test_batch_ends_at_its_number_of_commands() -> None:
    batches = await batches_of(*(poll(f"r-{number}") for number in range(MAX_BATCH + 1)))
    assert [len(sizes) for sizes in batches.sizes] == [MAX_BATCH, 1]
    assert batches.names[1] == [f"r-{MAX_BATCH}"]


async def test_command_that_is_larger_than_a_batch_goes_alone() -> None:
    batches = await batches_of(
        result("r-0", THIRD), result("r-1", MAX_BATCH_BYTES + 1), result("r-2", THIRD), result("r-3", THIRD)
    )
    assert batches.names == [["r-0", "r-2", "r-3"], ["r-1"]]


async def test_light_commands_wait_for_no_queue_of_large_ones() -> None:
    batches = await batches_of(*(result(f"r-{number}", THIRD) for number in range(7)), BEAT, poll("r-7"))
    assert batches.names == [["beat", "r-7"], ["r-0", "r-1", "r-2"], ["r-3", "r-4", "r-5"], ["r-6"]]


async def test_all_that_fits_goes_together_in_its_order() -> None:
    batches = await batches_of(result("r-0", THIRD), BEAT, result("r-1", THIRD))
    assert batches.names == [["r-0", "beat", "r-1"]]


async def test_oldest_command_has_its_turn_however_many_light_ones_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_BATCH", 4)
    large = [result("r-0", 2 * MAX_BATCH_BYTES), result("r-1", 2 * MAX_BATCH_BYTES)]
    batches = await batches_of(*large, *([BEAT] * 10))
    assert batches.names == [["beat"] * 4, ["r-0"], ["beat"] * 4, ["r-1"], ["beat"] * 2]


async def test_batch_of_light_commands_is_bounded_in_bytes_too() -> None:
    batches = await batches_of(*(result(f"r-{number}", LIGHT_BYTES) for number in range(2 * MAX_BATCH)))
    assert [sum(sizes) for sizes in batches.sizes] == [MAX_BATCH_BYTES, MAX_BATCH_BYTES]


async def test_what_comes_while_a_batch_is_written_is_bounded_too() -> None:
    batches = Batches()
    writer = GroupCommitWriter(batches, lambda _batch: None)
    writer.start()
    await asyncio.gather(*(writer.submit(result(f"r-{number}", MAX_BATCH_BYTES)) for number in range(2)))
    await asyncio.gather(*(writer.submit(result(f"r-{number}", THIRD)) for number in range(2, 6)), writer.submit(BEAT))
    await writer.close()
    assert batches.names == [["r-0"], ["r-1"], ["beat"], ["r-2", "r-3", "r-4"], ["r-5"]]


async def turns_of_the_loop() -> None:
    """More than a batch gathers for."""
    for _ in range(2 * writer_module.GATHER_TURNS):
        await asyncio.sleep(0)


async def test_batch_grows_until_it_is_taken() -> None:
    batches = LateBatches()
    writer = GroupCommitWriter(batches, lambda _batch: None)
    writer.start()
    submits = [asyncio.create_task(writer.submit(poll("r-0")))]
    await turns_of_the_loop()
    submits.append(asyncio.create_task(writer.submit(poll("r-1"))))
    await turns_of_the_loop()
    assert len(batches.takes) == 1
    batches.go_on()
    submits.append(asyncio.create_task(writer.submit(poll("r-2"))))
    await asyncio.gather(*submits[:2])
    await turns_of_the_loop()
    batches.go_on()
    await asyncio.gather(*submits)
    await writer.close()
    assert batches.names == [["r-0", "r-1"], ["r-2"]]


async def test_all_that_wait_are_told_when_their_batch_is_never_taken() -> None:
    batches = LateBatches()
    writer = GroupCommitWriter(batches, lambda _batch: None)
    writer.start()
    submits = [asyncio.create_task(writer.submit(poll(f"r-{number}"))) for number in range(2)]
    await turns_of_the_loop()
    submits.append(asyncio.create_task(writer.submit(poll("r-2"))))
    await turns_of_the_loop()
    batches.fail()
    told = await asyncio.gather(*submits, return_exceptions=True)
    assert [type(error) for error in told] == [LedgerUnavailable] * 3
    after = asyncio.create_task(writer.submit(poll("r-3")))
    await turns_of_the_loop()
    batches.go_on()
    await after
    await writer.close()
    assert batches.names == [["r-3"]]


@pytest.mark.parametrize(
    ("command", "size"),
    [
        (admit("r-1", request=b"x" * 7), 7),
        (finish("r-1", sample=b"x" * 5), 5),
        (finish("r-1", sample=None), 0),
        (cmd.FinishAttempt("r-1", 1, "s-1", "success", sample=b"xx", trajectory=b"xxx", trajectory_saved="own"), 5),
        (poll("r-1"), 0),
        (BEAT, 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_payloads_are_what_counts(command: cmd.Command[Any], size: int) -> None:
    assert command.size_bytes == size
