"""In which order tests run where several processes share them: those that wait for programs come first everywhere.

pytest-xdist's `worksteal` cuts the tests into as many runs as there are workers, and who has finished takes half of
what another one has left. Slow tests at the end would leave the others idle.
"""

from __future__ import annotations

from collections.abc import Sequence


def dealt[T](modules: Sequence[tuple[bool, Sequence[T]]], *, workers: int) -> list[T]:
    """The tests of `modules`, each slow or not and with its tests in order, as runs of equal length for `workers`.

    Every run begins with its share of the slow modules, which stay whole.
    """
    runs: list[list[T]] = [[] for _ in range(workers)]
    for slow, tests in sorted(modules, key=lambda module: -len(module[1])):
        if slow:
            min(runs, key=len).extend(tests)
    quick = [test for slow, tests in modules if not slow for test in tests]
    total = len(quick) + sum(map(len, runs))
    order: list[T] = []
    for number, run in enumerate(runs, start=1):
        wanted = max(0, total * number // workers - len(order) - len(run))
        order += run + quick[:wanted]
        del quick[:wanted]
    return order + quick
