"""Metric families made from what a process measures, and those that an API and a scheduler both have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isinf

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.meters import Distribution

_process = ProcessCollector(registry=CollectorRegistry())


class Gathered(Collector):
    """Metrics that were gathered already."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """One number as it is now."""
    family = GaugeMetricFamily(name, text)
    family.add_metric((), value)
    return family


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """One number that only grows; ``name`` comes without `_total`."""
    family = CounterMetricFamily(name, text)
    family.add_metric((), value)
    return family


def histogram(name: str, text: str, found: Distribution) -> HistogramMetricFamily:
    """A distribution with its bounds as buckets."""
    family = HistogramMetricFamily(name, text)
    buckets = [("+Inf" if isinf(bound) else repr(bound), count) for bound, count in found.cumulated()]
    family.add_metric((), buckets, found.total)
    return family


def writer_metrics(prefix: str, ledger: Ledger) -> list[Metric]:
    """How this process's commands come into the ledger. The names begin with ``prefix``."""
    writer = ledger.meters
    return [
        histogram(f"{prefix}_append_seconds", "From a command's submission to its commit.", writer.append_sec),
        histogram(f"{prefix}_batch_commands", "Commands in each committed batch.", writer.batch_commands),
        counter(f"{prefix}_failed_batches", "Batches of commands that could not be written.", writer.failed_batches),
        counter(
            f"{prefix}_ledger_retries",
            "Transactions and reads tried again because their connection failed.",
            ledger.retries,
        ),
    ]


def loop_lag_metric(prefix: str, lag_sec: Distribution) -> Metric:
    """What `LoopLag` measured. The name begins with ``prefix``."""
    return histogram(f"{prefix}_loop_lag_seconds", "How late the event loop came round.", lag_sec)


def process_metrics() -> Iterable[Metric]:
    """This process's own CPU, memory and files, as every Prometheus client tells them."""
    return _process.collect()
