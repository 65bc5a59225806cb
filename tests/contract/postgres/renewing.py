"""A process that renews the same leases as its neighbours do, until its standard input ends, and counts.

A program of its own, for tests: `python -m tests.contract.postgres.renewing DATABASE_URL ROLLOUTS`. It prints a line
after every few acknowledgements, and at the end `total N failed M`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from tests.support.ledger import poll

CALLERS = 4
TOLD_EACH = 10


async def main(database_url: str, rollouts: int) -> None:
    ledger = await Ledger.open(database_url)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    # A thread that nobody waits for: this process may end before its input does.
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    renewed = failed = 0

    async def renew() -> None:
        nonlocal renewed, failed
        while not ended.is_set():
            try:
                await ledger.submit(poll(f"r-{random.randrange(rollouts)}"))
            except LedgerUnavailable as error:
                failed += 1
                print("failed", error, flush=True)
                continue
            renewed += 1
            if renewed % TOLD_EACH == 0:
                print(f"renewed {renewed}", flush=True)

    await asyncio.gather(*(renew() for _ in range(CALLERS)))
    await ledger.close()
    print(f"total {renewed} failed {failed}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
