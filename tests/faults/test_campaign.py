"""Each write, sync, truncation, opening, deletion and read fails in turn: nothing acknowledged is lost, nothing wrong.

``FAULT_ROUNDS`` is how many faults are tried, spread evenly over all that there are (60); ``make faults`` tries each.
``FAULT_SEED`` replays a seed.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from idemactor.storage import sqlite_wal
from idemactor.storage.base import CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from tests.faults.disk import Fault, FaultyDisk, Kind, Manner
from tests.faults.life import SHARDS, Broken, Life, run_on_mock_time

ROUNDS: Final = int(os.environ.get("FAULT_ROUNDS", "60"))
SEED: Final = int(os.environ.get("FAULT_SEED", "1"))
CHECKPOINT_PAGES: Final = 12
"""So that checkpoints happen within a short story."""
SOON_STEPS: Final = 40
"""Within how many changes to the disk after its fault the power goes, in the stories in which it does."""

MANNERS: Final = {
    Kind.OPEN: (Manner.ERROR,),
    Kind.READ: (Manner.ERROR,),
    Kind.WRITE: (Manner.ERROR, Manner.TORN, Manner.FULL),
    Kind.SYNC: (Manner.ERROR, Manner.TORN),
    Kind.TRUNCATE: (Manner.ERROR,),
    Kind.DELETE: (Manner.ERROR,),
}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_PAGES", CHECKPOINT_PAGES)


@pytest.fixture(name="empty", scope="module")
def _empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "data"
    with DataDirectory.open(path, SHARDS):
        pass
    return path


def tell(empty: Path, path: Path, fault: Fault | None, seed: int, *, power: bool) -> Life:
    """One story from its beginning, in a copy of an empty directory, to its end."""
    shutil.copytree(empty, path / "data")
    rng = Random(seed)
    # With the fault, or when the story is told: a power loss is worst while a shard mends what failed.
    soon = rng.randrange(1, SOON_STEPS) if power and rng.random() < 0.5 else None
    life = Life(path / "data", FaultyDisk(rng, fault, soon))
    try:
        run_on_mock_time(life, power=power)
        findings = [finding.what for finding in check_directory(life.path).findings]
        if findings:
            raise Broken(f"the check finds {findings}")
    except BaseException as error:
        error.add_note(f"FAULT_SEED={seed}, fault: {fault}, power loss: {power}")
        raise
    finally:
        life.disk.close()
    shutil.rmtree(path)
    return life


def every_fault(counts: Counter[Kind]) -> Iterator[Fault]:
    """All that can be struck in a story which does so many operations of each kind."""
    for kind, manners in MANNERS.items():
        for nth in range(1, counts[kind] + 1):
            for manner in manners:
                yield Fault(kind, nth, manner)
                yield Fault(kind, nth, manner, lasting=True)


def spread(faults: list[Fault], most: int) -> list[tuple[int, Fault]]:
    """At most ``most`` of them, evenly, and the same ones for the same seed."""
    step = max(1.0, len(faults) / most)
    start = Random(SEED).random() * step
    picked = (int(start + step * n) for n in range(most))
    return [(number, faults[number]) for number in picked if number < len(faults)]


def test_the_disk_fails_once_or_for_good_at_each_of_its_operations(empty: Path, tmp_path: Path) -> None:
    well = tell(empty, tmp_path / "well", None, SEED, power=False)
    counts = well.disk.strikes.counts
    assert well.refused == well.refused_starts == 0
    assert all(counts[kind] for kind in (Kind.OPEN, Kind.READ, Kind.WRITE, Kind.SYNC, Kind.TRUNCATE))
    assert any("evicted" in each for each in well.notes.happened)
    faults = list(every_fault(counts))
    struck: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    for number, fault in spread(faults, ROUNDS):
        life = tell(empty, tmp_path / str(number), fault, SEED + number, power=number % 2 == 1)
        struck[fault.kind] += 1
        noticed[fault.kind] += bool(life.refused or life.refused_starts)
    print(f"{sum(struck.values())} of {len(faults)} faults: {dict(struck)}; callers noticed: {dict(noticed)}")
    assert sum(struck.values()) == min(ROUNDS, len(faults))
    # A fault that nobody notices is one that cost nothing; where it is so of all of them, none was there.
    assert noticed[Kind.WRITE]
    assert noticed[Kind.SYNC]


def test_a_shard_that_answers_before_its_write_is_found_out(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Journal.append

    async def hasty(self: Journal, shard: int, previous: int, body: bytes) -> tuple[CommitResult, int]:
        _, seq = await commit(self, shard, previous, body)
        return CommitResult.OK, seq

    monkeypatch.setattr(Journal, "append", hasty)
    found = 0
    for nth in range(5, 300, 10):
        try:
            tell(empty, tmp_path / str(nth), Fault(Kind.WRITE, nth, lasting=True), SEED, power=True)
        except (Broken, ExceptionGroup):
            found += 1
    assert found
