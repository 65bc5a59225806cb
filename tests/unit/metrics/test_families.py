"""What a process measured becomes what Prometheus reads."""

from __future__ import annotations

from prometheus_client import generate_latest

from rollbook.ledger.meters import Distribution
from rollbook.metrics.families import Gathered, counter, gauge, histogram
from tests.support.scrapes import Scrape


def test_numbers_are_told_as_what_they_are() -> None:
    text = generate_latest(Gathered([gauge("free", "Free.", 2.5), counter("claims", "Claims.", 7)])).decode()
    assert "# TYPE free gauge" in text
    assert "# TYPE claims_total counter" in text
    found = Scrape(text)
    assert (found.one("free"), found.one("claims_total")) == (2.5, 7)


def test_buckets_of_a_histogram_hold_all_that_is_not_above_their_bound() -> None:
    lag = Distribution((0.5, 1.0))
    for value in (0.25, 0.5, 0.75, 8.0):
        lag.add(value)
    found = Scrape(generate_latest(Gathered([histogram("lag", "Lag.", lag)])).decode())
    buckets = {labels["le"]: value for labels, value in found.all("lag_bucket")}
    assert buckets == {"0.5": 2, "1.0": 3, "+Inf": 4}
    assert (found.one("lag_count"), found.one("lag_sum")) == (4, 9.5)
