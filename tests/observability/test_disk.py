"""What is told of the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from idemactor.observability.disk import DiskMetrics


def told(directory: Path, journal: Path) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(DiskMetrics(directory, journal))
    lines = generate_latest(registry).decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


def test_room_and_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"x" * 100)
    (tmp_path / "journal.sqlite-wal").write_bytes(b"x" * 23)
    # What is kept for root is not ours.
    room = os.statvfs_result((4_096, 512, 1_000, 90, 70, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    assert told(tmp_path, tmp_path / "journal.sqlite") == {
        "idemactor_disk_free_bytes": 70 * 512,
        "idemactor_disk_size_bytes": 1_000 * 512,
        "idemactor_journal_bytes": 123,
    }


def test_a_directory_that_is_gone_says_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    assert told(tmp_path / "gone", tmp_path / "gone" / "journal") == {}
