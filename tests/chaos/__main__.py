"""`make chaos`: a long chaos run, or as long as its options say."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import traceback
from pathlib import Path

from tests.chaos.run import Plan, run_chaos

ROLLOUTS = 500
MINUTES = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description="Kill, stop and cut whatever there is, and check.")
    parser.add_argument("--seed", type=int, default=None, help="of the order of actions; a new one without it")
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    options = parser.parse_args()
    logging.getLogger("rollbook_client").setLevel(logging.ERROR)  # that polls are tried again is nothing new here
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    plan = Plan(seed=seed, rollouts=options.rollouts, seconds=options.minutes * 60)
    folder = Path(tempfile.mkdtemp(prefix="rollbook-chaos-"))
    print(f"seed {seed}; the processes' logs are in {folder}", flush=True)
    try:
        report = asyncio.run(run_chaos(plan, folder, show=lambda line: print(line, flush=True)))
    except (AssertionError, TimeoutError, ExceptionGroup) as error:
        traceback.print_exception(error)
        print(f"chaos: something does not hold; run it again with --seed {seed}", file=sys.stderr)
        return 1
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
