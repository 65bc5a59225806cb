"""A short chaos run; `make chaos` is the long one."""

from pathlib import Path

from tests.chaos.run import Plan, run_chaos

PLAN = Plan(seed=3, rollouts=40, seconds=12.0)


async def test_nothing_is_lost_or_done_twice_whatever_is_killed_stopped_or_cut(tmp_path: Path) -> None:
    report = await run_chaos(PLAN, tmp_path)
    assert report.rollouts == PLAN.rollouts
    assert report.actions > 5
