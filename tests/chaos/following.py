"""A process whose feed follows the ledger through everything, and writes down what it read: each page of positions.

`python -m tests.chaos.following DATABASE_URL FILE`: a line of the file is the position that was asked from, and the
positions that were found. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import IO

from rollbook.ledger.database import database_of
from rollbook.ledger.feed import Feed
from rollbook.ledger.reader import News, Reader
from rollbook.ledger.urls import parse_url


class RecordingReader(Reader):
    """Writes down what the feed reads."""

    record: IO[str]

    async def news_after(self, position: int, limit: int) -> list[News]:
        found = await super().news_after(position, limit)
        if found:
            print(position, *(event.position for event in found), file=self.record, flush=True)
        return found


async def main(database_url: str, path: Path) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    database = database_of(parse_url(database_url))
    await database.greet()
    reads = database.reads()
    reader = RecordingReader(database, reads)
    with path.open("w") as record:
        reader.record = record
        feed = Feed(reader, database.hints(reads, None))
        await feed.start()
        print("following", flush=True)
        await ended.wait()
        await feed.close()
        await reader.close()


def positions_read(path: Path) -> list[int]:
    """All positions in the order in which the feed took them in.

    Raises:
        AssertionError: it went on from elsewhere than where it was.
    """
    taken: list[int] = []
    page: list[int] = []
    asked_from = 0
    for line in path.read_text().splitlines():
        position, *found = map(int, line.split())
        if page and position != asked_from:
            # It went on. (Had it asked from there once more, the page before would not have been taken in.)
            assert position == page[-1], f"the feed went from {page[-1]} on at {position}"
            taken.extend(page)
        asked_from, page = position, found
    return taken + page


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
