"""What a scheduler process tells Prometheus of itself.

A thread answers, which only looks: no question waits for the event loop, so a scheduler whose loop is held up can
still be asked how late it is.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import start_http_server
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.meters import Distribution
from rollbook.metrics.families import counter, gauge, loop_lag_metric, process_metrics, writer_metrics
from rollbook.version import rollbook_version

from .scheduler import Scheduler

PREFIX = "rollbook_scheduler"


class Runners(Protocol):
    """The runner processes, as numbers that any thread may read."""

    @property
    def ready(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def free(self) -> int: ...


class SchedulerMetrics(Collector):
    """All metrics of a scheduler, its runners and its process. It may be asked on any thread."""

    def __init__(self, ledger: Ledger, scheduler: Scheduler, runners: Runners, *, lag_sec: Distribution) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._runners = runners
        self._lag_sec = lag_sec
        self._host = {"host": socket.gethostname(), "version": rollbook_version()}

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        scheduler, runners = self._scheduler, self._runners
        return [
            InfoMetricFamily(
                PREFIX, "Which scheduler this is, as in /health.", {"scheduler": scheduler.member_id, **self._host}
            ),
            gauge("rollbook_runners", "Runners that have loaded the entrypoint and live.", runners.ready),
            gauge("rollbook_runner_slots", "Slots of the runners that take work.", runners.capacity),
            gauge("rollbook_runner_free_slots", "Those that could take an attempt now.", runners.free),
            gauge(f"{PREFIX}_running_attempts", "Attempts that are not over yet.", scheduler.running),
            counter(f"{PREFIX}_claimed_attempts", "Attempts that this scheduler began.", scheduler.claimed),
            gauge(
                f"{PREFIX}_contact_age_seconds",
                "How long ago the last beat that the ledger accepted was sent, or the process began.",
                scheduler.contact_age_sec,
            ),
            *writer_metrics(PREFIX, self._ledger),
            loop_lag_metric(PREFIX, self._lag_sec),
            *process_metrics(),
        ]


class MetricsServer:
    """Answers `GET /metrics` in a thread of its own, from when it is made until it is closed."""

    def __init__(self, metrics: Collector, *, host: str, port: int) -> None:
        """Raises:
        OSError: the address cannot be listened on.
        """
        registry = CollectorRegistry()
        registry.register(metrics)
        self._server, self._thread = start_http_server(port, host, registry)

    def close(self) -> None:
        """Listen no more. It returns when the thread has ended, after half a second at most."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
