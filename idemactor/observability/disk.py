"""How much room there is where the shards' files are, and how much the journal takes: looked at when scraped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class DiskMetrics(Collector):
    """What a disk that cannot be looked at would say is left out: a missing series is not a series of zero.

    Args:
        directory: Of the data.
        journal: This process's.
    """

    def __init__(self, directory: Path, journal: Path) -> None:
        self._directory = directory
        self._journal = journal

    def describe(self) -> tuple[Metric, ...]:
        """Nothing: names are not looked up beforehand, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Bytes."""
        try:
            room = os.statvfs(self._directory)
            journal = sum(path.stat().st_size for path in self._journal_files() if path.exists())
        except OSError:
            return
        yield _gauge("disk_free_bytes", "Bytes that the server may still write there.", room.f_bavail * room.f_frsize)
        yield _gauge(
            "disk_size_bytes", "Bytes of the file system of the data directory.", room.f_blocks * room.f_frsize
        )
        yield _gauge("journal_bytes", "Bytes of the journal, its WAL included.", journal)

    def _journal_files(self) -> tuple[Path, Path]:
        return self._journal, self._journal.with_name(f"{self._journal.name}-wal")


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"idemactor_{name}", help_text, value=value)
