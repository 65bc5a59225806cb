"""Metrics as Prometheus understands them, and as the documents promise them."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.architecture.sources import ROOT

Labels = dict[str, str]
SCHEDULERS = "### Of a scheduler"
"""The heading in docs/operating.md below which a scheduler's own metrics are."""


class Scrape:
    """One answer."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.names = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
        self._samples = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]

    @property
    def ours(self) -> set[str]:
        """The names that are Rollbook's own."""
        return {name for name in self.names if name.startswith("rollbook_")}

    def all(self, name: str) -> list[tuple[Labels, float]]:
        return [(labels, value) for found, labels, value in self._samples if found == name]

    def one(self, name: str, **labels: str) -> float:
        (value,) = [value for found, value in self.all(name) if labels.items() <= found.items()]
        return value

    def labels(self, name: str) -> Labels:
        ((labels, _),) = self.all(name)
        return labels


def documented_metrics() -> tuple[set[str], set[str]]:
    """The names of what an API tells, and of what a scheduler tells."""
    page = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    apis, _, rest = page.partition(SCHEDULERS)
    assert rest, f"docs/operating.md has no {SCHEDULERS}"
    of_schedulers, _, after = rest.partition("\n#")
    return _names(apis) | _names(after), _names(of_schedulers)


def _names(text: str) -> set[str]:
    return set(re.findall(r"`(rollbook_\w+)`", text))
