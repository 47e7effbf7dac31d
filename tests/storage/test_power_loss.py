"""The power goes at random points, syncs fail, disks fill: what was acknowledged is there, and no half batch is.

``POWER_ROUNDS`` says how many rounds (100); ``POWER_SEED`` replays one.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import apsw
import pytest

from idemactor.core.keys import Identity
from idemactor.errors import StorageError
from idemactor.storage import sqlite_wal
from idemactor.storage.base import Batch, CommitResult, Opened
from idemactor.storage.memory import MemoryDisk, MemoryEngine
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.sqlite_create import create_file
from tests.storage.lossy_vfs import LossyDisk
from tests.storage.samples import Picture, Writer, picture

ROUNDS: Final = int(os.environ.get("POWER_ROUNDS", "60"))
LIVES: Final = 3
"""Power losses in a round, one after the other on what the last one left."""
BATCHES: Final = 12
STEPS: Final = 400
"""The power goes within so many changes to the disk."""
PLANTED_ROUNDS: Final = 60
"""In how many rounds a planted fault has to be found; it takes a handful."""


class Lost(AssertionError):
    """The disk broke the promise."""


@dataclass(frozen=True, slots=True)
class Odds:
    """How often what goes wrong, before each batch."""

    failing_sync: float = 0.08
    full_disk: float = 0.04
    kill: float = 0.05
    close: float = 0.05
    cut_after_failure: float = 0.4
    """How often the power goes soon after a failed commit, while the shard is being brought back."""


@dataclass(slots=True)
class Round:
    """One shard's file through several power losses. ``possible`` is what it may hold, at least one of them."""

    directory: Path
    rng: Random
    odds: Odds
    durability: sqlite_wal.Durability
    writer: Writer
    possible: list[MemoryDisk]
    disk: LossyDisk

    async def run(self) -> None:
        for _ in range(LIVES):
            await self.live()
            self.lose_power()
        await self.come_back(self.engine())

    async def live(self) -> None:
        """Work until the power goes."""
        self.disk.power_lost_at = self.rng.randrange(1, STEPS)
        engine = await self.come_back(self.engine())
        for _ in range(BATCHES):
            if engine is None:
                return
            self.prepare()
            engine = await self.step(engine)
        if engine is not None:
            self.disk.power_lost_at = self.disk.steps
            await engine.close()

    def prepare(self) -> None:
        disk, rng, odds = self.disk, self.rng, self.odds
        disk.failing_syncs = int(rng.random() < odds.failing_sync)
        disk.free_bytes = rng.randrange(40_000) if rng.random() < odds.full_disk else None

    async def step(self, engine: SqliteEngine) -> SqliteEngine | None:
        """One batch, and what goes wrong around it; None once the power is gone."""
        rng = self.rng
        chance = rng.random()
        if chance < self.odds.kill + self.odds.close:
            if chance < self.odds.close:
                await engine.close()
            else:
                # A killed process closes its files; nothing that it would have done is done.
                engine._file.close(tidy=False)
            return await self.come_back(self.engine(), killed=True)
        batch = self.writer.batch()
        result = await engine.commit(batch)
        self.account(batch, result)
        if result is CommitResult.OK:
            if rng.random() < 0.5:
                await engine.maintain()
            return engine
        if rng.random() < self.odds.cut_after_failure:
            disk = self.disk
            disk.power_lost_at = min(disk.power_lost_at or disk.steps, disk.steps + rng.randrange(1, 40))
        return await self.come_back(engine)

    def account(self, batch: Batch, result: CommitResult) -> None:
        """What the disk may hold after a batch came to ``result``."""
        after = applied(self.writer.disk, batch)
        if result is CommitResult.OK:
            # Without a sync, a power loss may take the latest batches, and only those.
            self.possible = [after] if self.durability == "full" else [*self.possible, after]
            self.writer.disk = after
        elif result is CommitResult.UNKNOWN:
            self.possible = [*self.possible, after]
        else:
            assert result is CommitResult.FAILED

    async def come_back(self, engine: SqliteEngine, killed: bool = False) -> SqliteEngine | None:
        """Open until it works, and compare; None once the power is gone."""
        while True:
            try:
                opened = await engine.reopen()
                seen = await picture(engine, opened, self.writer.used)
                break
            except StorageError as error:
                if self.disk.dead:
                    return None
                if not isinstance(error.__cause__, apsw.IOError | apsw.FullError):
                    raise Lost(f"the file cannot be opened: {error}") from error
                # The fault passes: the next try finds room and a disk that syncs.
                self.disk.free_bytes = None
        await self.compare(seen, [self.writer.disk] if killed else self.possible)
        return engine

    async def compare(self, seen: Picture, allowed: list[MemoryDisk]) -> None:
        for state in allowed:
            if await shown(state, self.writer.used) == seen:
                # What was seen may be answered: from here on it must stay.
                self.possible = [state]
                self.writer.disk = state
                return
        raise Lost("what the file holds is none of the states that it may hold")

    def lose_power(self) -> None:
        left = self.directory.with_name(f"{self.directory.name}-")
        left.mkdir()
        self.disk.leave(left)
        self.disk.close()
        shutil.rmtree(self.directory)
        self.directory = left
        self.disk = LossyDisk(self.rng)
        self.look_for_damage()

    def look_for_damage(self) -> None:
        """Let SQLite look at a copy: looking must not repair what the engine is about to find."""
        copied = shutil.copytree(self.directory, self.directory.with_name("copy"))
        connection = apsw.Connection(str(copied / "shard.db"))
        try:
            problems = connection.pragma("integrity_check")
        except apsw.Error as error:
            problems = str(error)
        finally:
            connection.close()
            shutil.rmtree(copied)
        if problems != "ok":
            raise Lost(f"the file is damaged: {problems}")

    def engine(self) -> SqliteEngine:
        path = self.directory / "shard.db"
        return SqliteEngine(path, threads="never", vfs=self.disk.name, durability=self.durability)


def applied(state: MemoryDisk, batch: Batch) -> MemoryDisk:
    after = replace(
        state,
        entries=dict(state.entries),
        ids=dict(state.ids),
        incidents=dict(state.incidents),
        tallies=copy.copy(state.tallies),
        intents=dict(state.intents),
        events=dict(state.events),
        operations=dict(state.operations),
    )
    after.apply(batch)
    return after


async def shown(state: MemoryDisk, identities: set[Identity]) -> Picture:
    engine = MemoryEngine(state)
    opened: Opened = await engine.open()
    return await picture(engine, opened, identities)


async def play(seed: int, directory: Path, odds: Odds, durability: sqlite_wal.Durability = "full") -> None:
    """One round; raises ``Lost`` where the promise is broken."""
    rng = Random(seed)
    home = directory / f"seed-{seed}"
    home.mkdir()
    new_shard(directory, home / "shard.db")
    writer = Writer(rng)
    game = Round(home, rng, odds, durability, writer, [writer.disk], LossyDisk(rng))
    try:
        await game.run()
    finally:
        game.disk.close()
        shutil.rmtree(game.directory, ignore_errors=True)


def new_shard(directory: Path, path: Path) -> None:
    """A new shard's file, copied: making one is slow, and is tested elsewhere."""
    template = directory / "template.db"
    if not template.exists():
        create_file(template, 0, 1)
    shutil.copyfile(template, path)


@pytest.fixture(autouse=True)
def _small_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints in the middle of everything, as on a busy shard."""
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_PAGES", 20)
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_LIMIT_PAGES", 60)


def seeds() -> range | list[int]:
    chosen = os.environ.get("POWER_SEED")
    return range(ROUNDS) if chosen is None else [int(chosen)]


@contextmanager
def replayable(seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(f"replay with: POWER_SEED={seed} python -m pytest tests/storage/test_power_loss.py")
        raise


async def test_what_was_acknowledged_survives_a_power_loss(tmp_path: Path) -> None:
    for seed in seeds():
        with replayable(seed):
            await play(seed, tmp_path, Odds())
    print(f"{len(seeds())} rounds of {LIVES} power losses: nothing acknowledged was lost")


async def test_without_syncs_a_power_loss_takes_only_the_latest(tmp_path: Path) -> None:
    for seed in list(seeds())[: max(1, ROUNDS // 4)]:
        with replayable(seed):
            await play(seed, tmp_path, Odds(failing_sync=0.0, full_disk=0.0), "process")


async def found_out(tmp_path: Path, odds: Odds) -> bool:
    for seed in range(PLANTED_ROUNDS):
        try:
            await play(seed, tmp_path, odds)
        except Lost:
            return True
    return False


async def test_commits_without_a_sync_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wal, "_SYNCHRONOUS", {"full": "OFF"})
    assert await found_out(tmp_path, Odds(failing_sync=0.0))


async def test_commits_that_only_checkpoints_sync_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "_SYNCHRONOUS", {"full": "NORMAL"})
    assert await found_out(tmp_path, Odds(failing_sync=0.0))


async def test_trust_in_what_was_read_back_after_a_failed_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal.WalFile, "_settle", lambda *_: None)
    assert await found_out(tmp_path, Odds(failing_sync=0.3))


async def test_a_checkpoint_of_a_wal_that_never_reached_the_disk_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal.WalFile, "_rewrite_wal", lambda _: None)
    assert await found_out(tmp_path, Odds(failing_sync=0.3, cut_after_failure=1.0))
