"""The metrics of several workers as one exposition: what each counted has a label ``worker``.

Not added up: a worker that was started again begins at nothing, and a sum that falls looks like a restart of all of
them. How the shards stand is the whole server's, whoever owns them, and has no such label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from idemactor.observability.metrics import ShardStanding, standing_families

LABEL: Final = "worker"


def merged(reports: Mapping[int, str | None], standings: Sequence[ShardStanding], now_ms: int) -> bytes:
    """One exposition.

    Args:
        reports: What each worker counted (``Metrics.counted``); None: it did not say.
        standings: Every shard, as it stands now.
        now_ms: The time, milliseconds since the epoch.
    """
    registry = CollectorRegistry()
    registry.register(_Merged(reports, standings, now_ms))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, reports: Mapping[int, str | None], standings: Sequence[ShardStanding], now_ms: int) -> None:
        self._reports = reports
        self._standings = standings
        self._now_ms = now_ms

    def describe(self) -> tuple[Metric, ...]:
        """Nothing: names are not looked up beforehand, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("idemactor_worker_up", "0: did not say in time what it counted.", labels=(LABEL,))
        families: dict[str, Metric] = {}
        for worker, text in sorted(self._reports.items()):
            up.add_metric((str(worker),), float(text is not None))
            for family in text_string_to_metric_families(text or ""):
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, LABEL: str(worker)}
                    known.add_sample(sample.name, labels, sample.value)
        yield up
        yield from families.values()
        yield from standing_families(self._standings, self._now_ms)
