from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import apsw
import pytest
import trio

from idemactor.core.record import Outcome
from idemactor.core.tally import Tally
from idemactor.errors import StartError, StorageError
from idemactor.storage import directory, journal_file, journal_rows, journaled, sqlite_wal, watermark
from idemactor.storage.backups import back_up, restore
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import JournalFile, Row, create_journal
from idemactor.storage.journaled import WRITE_BEHIND_ROWS, JournaledEngine
from idemactor.storage.layout import shard_name
from idemactor.storage.pace import Threads
from idemactor.storage.progress import silent
from idemactor.storage.reading import read_held
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.sqlite_create import create_file
from idemactor.storage.sqlite_wal import FRAME_BYTES
from idemactor.storage.wal_frames import HEADER_BYTES, frames_in
from tests.storage.contract import EngineContract, incident
from tests.storage.lossy_vfs import LossyDisk
from tests.storage.samples import NOW, committed, name, pending

SHARDS = 4

# --------------------------------------------------------------------------------------------- the contract of engines


class JournaledPlace:
    def __init__(self, path: Path, rows: int, durability: sqlite_wal.Durability) -> None:
        self.path = path
        self.rows = rows
        self.durability = durability
        self.file: JournalFile | None = None
        create_file(path / "shard.db", 0, 1)
        create_journal(path / JOURNAL_NAME)

    def engine(self) -> JournaledEngine:
        if self.file is not None:
            self.file.close(tidy=False)
        self.file = JournalFile(self.path / JOURNAL_NAME, self.durability)
        inner = SqliteEngine(self.path / "shard.db", threads="never")
        return JournaledEngine(0, inner, Journal(self.file, "never"), rows=self.rows)


class TestJournaledEngine(EngineContract):
    @pytest.fixture(params=[1, 3, WRITE_BEHIND_ROWS])
    def disk(self, tmp_path: Path, request: pytest.FixtureRequest) -> JournaledPlace:
        return JournaledPlace(tmp_path, request.param, "full")


class TestJournaledEngineOfOneProcess(EngineContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> JournaledPlace:
        return JournaledPlace(tmp_path, 3, "process")


# ------------------------------------------------------------------------------------------------------ several shards


class Gate:
    """Holds a write in its thread until it is told to go on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()


class WatchedFile(JournalFile):
    """Tells which batches shared a transaction, and may be held or made to fail in it."""

    def __init__(self, path: Path, vfs: str | None = None) -> None:
        super().__init__(path, vfs=vfs)
        self.groups: list[list[Row]] = []
        self.threads: set[int] = set()
        self.gates: list[Gate] = []
        self.errors: list[Exception] = []
        self.openings = 0

    def open(self, *, recovering: bool = False) -> int:
        self.openings += 1
        return super().open(recovering=recovering)

    def _transact(self, connection: apsw.Connection, work: Callable[[apsw.Connection], None]) -> CommitResult:
        if self.gates:
            gate = self.gates.pop(0)
            gate.entered.set()
            assert gate.opened.wait(20)
        return super()._transact(connection, work)

    def append(self, rows: Sequence[Row], done: Mapping[int, int]) -> CommitResult:
        if self.errors:
            raise self.errors.pop(0)
        self.threads.add(threading.get_ident())
        self.groups.append(list(rows))
        return super().append(rows, done)


class Process:
    """What one process has on a directory."""

    def __init__(
        self, path: Path, threads: Threads = "never", vfs: str | None = None, rows: int = WRITE_BEHIND_ROWS
    ) -> None:
        self.file = WatchedFile(path / JOURNAL_NAME, vfs)
        self.journal = Journal(self.file, threads)
        self.inner = [
            SqliteEngine(path / shard_name(shard), threads="never", vfs=vfs, shard=shard, shards=SHARDS)
            for shard in range(SHARDS)
        ]
        self.engines = [
            JournaledEngine(shard, inner, self.journal, rows=rows) for shard, inner in enumerate(self.inner)
        ]
        self.tokens = [0] * SHARDS

    async def open(self) -> Process:
        self.tokens = [(await engine.open()).last_token for engine in self.engines]
        return self

    async def commit(self, shard: int, key: str, **fields: object) -> CommitResult:
        self.tokens[shard] += 1
        token = self.tokens[shard]
        batch = Batch(NOW, token, [pending(token, name(key))], **fields)  # type: ignore[arg-type]
        return await self.engines[shard].commit(batch)

    async def holds(self, shard: int, *keys: str) -> list[str]:
        """Those of the keys that the shard has."""
        found = await self.engines[shard].load([name(key) for key in keys])
        return sorted(identity.key for identity in found)

    async def together(self, *keys: str) -> list[CommitResult]:
        """One commit a shard, all at one moment."""
        results = [CommitResult.FENCED] * len(keys)

        async def one(shard: int, key: str) -> None:
            results[shard] = await self.commit(shard, key)

        async with trio.open_nursery() as nursery:
            for shard, key in enumerate(keys):
                nursery.start_soon(one, shard, key)
        return results

    def kill(self) -> None:
        self.file.close(tidy=False)
        for inner in self.inner:
            inner._file.close(tidy=False)

    async def stop(self) -> None:
        for engine in self.engines:
            await engine.close()
        await self.journal.close()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(directory, "new_first_seq", lambda: 0)
    DataDirectory.open(tmp_path / "data", SHARDS).close()
    return tmp_path / "data"


@pytest.fixture
def lossy() -> Iterator[LossyDisk]:
    disk = LossyDisk(Random(1))
    yield disk
    disk.close()


@pytest.fixture
async def process(path: Path) -> AsyncIterator[Process]:
    process = await Process(path).open()
    yield process
    process.kill()


@pytest.fixture
async def threaded(path: Path) -> AsyncIterator[Process]:
    process = await Process(path, "always").open()
    yield process
    process.kill()


async def entered(gate: Gate) -> None:
    assert await trio.to_thread.run_sync(gate.entered.wait, 20)


OK, FAILED, UNKNOWN = CommitResult.OK, CommitResult.FAILED, CommitResult.UNKNOWN


async def test_shards_that_are_ready_at_one_moment_share_a_transaction_and_a_sync(path: Path, lossy: LossyDisk) -> None:
    process = await Process(path, vfs=lossy.name).open()
    assert await process.together("a", "b", "c", "d") == [OK] * 4
    before = lossy.synced
    assert await process.together("e", "f", "g", "h") == [OK] * 4
    assert lossy.synced - before == 1
    assert [len(group) for group in process.file.groups] == [4, 4]
    process.kill()


async def test_who_comes_during_a_write_shares_the_next_one(threaded: Process) -> None:
    gate = Gate()
    threaded.file.gates.append(gate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threaded.commit, 0, "a")
        await entered(gate)
        for shard in (1, 2, 3):
            nursery.start_soon(threaded.commit, shard, "b")
        await trio.testing.wait_all_tasks_blocked()
        gate.opened.set()
    assert [row.shard for row in threaded.file.groups[0]] == [0]
    assert sorted(row.shard for row in threaded.file.groups[1]) == [1, 2, 3]
    assert len(threaded.file.groups) == 2


async def test_under_load_everybody_is_served_in_order_and_syncs_are_shared(threaded: Process) -> None:
    each = 40

    async def busy(shard: int) -> None:
        for n in range(each):
            assert await threaded.commit(shard, f"k{n}") is OK

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for shard in range(SHARDS):
                nursery.start_soon(busy, shard)
    written = [row for group in threaded.file.groups for row in group]
    assert len(threaded.file.groups) < len(written) == each * SHARDS
    for shard in range(SHARDS):
        mine = [row for row in written if row.shard == shard]
        assert [row.previous for row in mine] == [0, *(row.seq for row in mine[:-1])]
    assert len({row.seq for row in written}) == len(written)
    for group in threaded.file.groups:
        assert len({row.shard for row in group}) == len(group)


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_shard_that_is_cancelled_leaves_the_others_answered(threaded: Process, cancelled: int) -> None:
    gate = Gate()
    threaded.file.gates.append(gate)
    results: dict[int, CommitResult] = {}
    scopes = [trio.CancelScope() for _ in range(3)]

    async def one(shard: int) -> None:
        with scopes[shard]:
            results[shard] = await threaded.commit(shard, "k")

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, 0)
            await entered(gate)
            for shard in (1, 2):
                nursery.start_soon(one, shard)
                await trio.testing.wait_all_tasks_blocked()
            # 0 writes in its thread, and 1 waits first in the row: the lead will come to it.
            scopes[cancelled].cancel()
            await trio.testing.wait_all_tasks_blocked()
            gate.opened.set()
        assert results[2] is OK
        assert await threaded.together("l", "l", "l", "l") == [OK] * 4
    for shard in range(3):
        assert await threaded.holds(shard, "k", "l") == ["k", "l"]


async def test_where_no_thread_can_be_had_nobody_waits_for_ever(threaded: Process) -> None:
    threaded.file.errors.append(RuntimeError("can't start new thread"))
    results: dict[int, CommitResult] = {}

    async def one(shard: int) -> None:
        results[shard] = await threaded.commit(shard, "k")

    async def first() -> None:
        with pytest.raises(RuntimeError):
            await threaded.commit(0, "k")

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, threaded.journal._busy:
            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(one, 1)
            await trio.testing.wait_all_tasks_blocked()
    # They were one group: the one that wrote for both raised, and the other was told that nobody knows.
    assert results == {1: UNKNOWN}
    for shard in (0, 1):
        assert await threaded.engines[shard].confirm() is FAILED
        await threaded.engines[shard].reopen()
        assert await threaded.commit(shard, "k") is OK


# ------------------------------------------------------------------------------------------------------------- failures


@pytest.fixture
async def on_lossy(path: Path, lossy: LossyDisk) -> AsyncIterator[Process]:
    process = await Process(path, vfs=lossy.name).open()
    assert await process.together("a", "a", "a", "a") == [OK] * 4
    yield process
    process.kill()


async def test_a_failed_sync_is_told_to_its_group_and_to_nobody_else(on_lossy: Process, lossy: LossyDisk) -> None:
    process = on_lossy
    lossy.failing_syncs = 1
    assert await process.together("b", "b") == [UNKNOWN] * 2
    for shard in (0, 1):
        assert await process.engines[shard].confirm() is FAILED
        with pytest.raises(StorageError):
            await process.engines[shard].load([name("a")])
    # What the others had was durable before, and they may go on saying so.
    for shard in (2, 3):
        assert await process.engines[shard].confirm() is OK
        assert await process.holds(shard, "a") == ["a"]
    # Until the file is open again nobody writes.
    assert await process.commit(2, "c") is FAILED
    async with trio.open_nursery() as nursery:
        for shard in (0, 1, 2):
            nursery.start_soon(process.engines[shard].reopen)
    # One that was not concerned goes on as if nothing had been.
    assert await process.commit(3, "c") is OK
    for shard in range(SHARDS):
        assert "a" in await process.holds(shard, "a")
        assert await process.commit(shard, "d") is OK
    assert await process.holds(3, "a", "b", "c", "d") == ["a", "c", "d"]
    assert await process.holds(2, "a", "b", "c", "d") == ["a", "d"]


async def test_a_full_disk_is_failed_for_certain_and_costs_nothing(on_lossy: Process, lossy: LossyDisk) -> None:
    process = on_lossy
    lossy.free_bytes = 0
    assert set(await process.together("b", "b", "b", "b")) <= {UNKNOWN, FAILED}
    with pytest.raises(StorageError):
        await process.engines[0].reopen()
    lossy.free_bytes = None
    for shard in range(SHARDS):
        await process.engines[shard].reopen()
        assert await process.holds(shard, "a") == ["a"]
        assert await process.commit(shard, "c") is OK


async def test_a_file_that_cannot_be_written_behind_loses_nothing(on_lossy: Process, lossy: LossyDisk) -> None:
    process = on_lossy
    engine = process.engines[0]
    lossy.afflicted, lossy.free_bytes = "shard-0000", 0
    with pytest.raises(StorageError, match="shard 0: its file cannot be written"):
        await engine.alarms(1)
    # Who reads is answered, and nothing more comes to what waits for the file.
    assert await process.holds(0, "a", "b") == ["a"]
    assert await process.commit(0, "b") is FAILED
    await engine.reopen()
    assert await process.holds(0, "a", "b") == ["a"]
    assert await process.commit(0, "b") is FAILED
    assert await process.commit(1, "b") is OK
    await engine.close()
    lossy.free_bytes = None
    await engine.open()
    assert await process.holds(0, "a", "b") == ["a"]
    assert await process.commit(0, "c") is OK


async def test_what_no_file_could_store_is_refused_before_it_is_durable(process: Process) -> None:
    poison = Batch(NOW, 1, puts=[pending(1, name("k"), holder="\ud800")])
    engine = process.engines[0]
    assert await engine.commit(poison) is FAILED
    assert process.file.groups == []
    assert (await engine.reopen()).last_token == 0
    assert await process.commit(0, "k") is OK


async def test_a_number_that_another_shard_had_is_not_given_again(path: Path) -> None:
    process = await Process(path).open()
    for n in range(5):
        assert await process.commit(3, f"k{n}") is OK
    await process.stop()
    process = Process(path)
    await process.engines[0].open()
    assert await process.commit(0, "k") is OK
    assert [row.seq for row in process.file.groups[0]] == [6]
    process.kill()


async def test_numbers_go_on_where_the_latest_file_or_the_journal_ended(path: Path) -> None:
    process = await Process(path).open()
    for n in range(5):
        assert await process.commit(3, f"k{n}") is OK
    assert await process.commit(1, "k") is OK
    await process.stop()
    # The journal is empty now, and shard 0, which is opened first, has never written anything.
    process = await Process(path).open()
    assert await process.commit(3, "l") is OK
    assert process.file.groups == [[Row(7, 3, 5, process.file.groups[0][0].body)]]
    process.kill()
    process = await Process(path).open()
    assert await process.holds(3, "k4", "l") == ["k4", "l"]
    await process.stop()


# --------------------------------------------------------------------------------------------------- written behind


@pytest.mark.parametrize(
    ("rows", "small", "written_at"),
    [(7, False, [7, 14]), (1, False, [4, 8, 12]), (14, True, [7, 14]), (1, True, [2, 4, 6, 8, 10, 12, 14])],
)
async def test_the_file_is_written_once_enough_rows_and_batches_have_come_together(
    path: Path, rows: int, small: bool, written_at: list[int]
) -> None:
    process = await Process(path, rows=rows).open()
    engine, file = process.engines[0], process.inner[0]
    seen = []
    for n in range(1, 15):
        assert await process.commit(0, f"k{n}") is OK
        await engine.maintain(small=small)
        if len(await file.alarms(100)) == n:
            seen.append(n)
    assert seen == written_at
    process.kill()


async def test_shards_that_are_due_at_one_moment_write_behind_one_after_the_other(path: Path) -> None:
    process = await Process(path, rows=8).open()
    writers: list[set[int]] = []
    for n in range(16):
        assert await process.together(f"k{n}", f"k{n}", f"k{n}") == [OK] * 3
        held = [len(process.file.read_batches(shard).rows) for shard in range(3)]
        for engine in process.engines:
            await engine.maintain()
        writers.append({shard for shard in range(3) if not process.engines[shard]._overlay.batches})
        assert max(held) <= 2 * 8 + 1
    assert [len(group) for group in writers[7:10]] == [1, 1, 1]
    assert set.union(*writers[7:10]) == {0, 1, 2}
    process.kill()


async def test_a_shard_that_never_has_its_turn_writes_behind_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process(path, rows=8).open()
    monkeypatch.setattr(process.journal, "turn_to_write_behind", lambda: False)
    for n in range(1, 17):
        assert process.engines[0]._overlay.batches == n - 1
        assert await process.commit(0, f"k{n}") is OK
        await process.engines[0].maintain()
    assert process.engines[0]._overlay.batches == 0
    process.kill()


async def test_a_key_that_changes_for_ever_does_not_make_the_journal_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process(path).open()
    engine = process.engines[0]
    monkeypatch.setattr(engine, "_bytes_max", 10_000)
    drops = set()
    for token in range(1, 101):
        batch = Batch(NOW, token, puts=[pending(1, name("k"), token=token, reason="r" * 300)])
        assert await engine.commit(batch) is OK
        await engine.maintain()
        held = process.file.read_batches(0)
        drops.add(held.dropped)
        assert sum(len(row.body) for row in held.rows) <= 2 * 10_000 + 1_000
    assert held.dropped > 60
    assert len(drops) < 15
    process.kill()


async def test_what_was_written_behind_leaves_the_journal_with_the_next_batch_of_anybody(process: Process) -> None:
    assert await process.together("a", "a", "a") == [OK] * 3
    await process.engines[0].alarms(1)
    assert len(process.file.read_batches(0).rows) == 1
    assert await process.commit(3, "a") is OK
    assert (process.file.read_batches(0).rows, process.file.read_batches(0).dropped > 0) == ([], True)
    assert len(process.file.read_batches(1).rows) == 1


async def test_what_could_not_be_dropped_is_dropped_later(on_lossy: Process, lossy: LossyDisk) -> None:
    process = on_lossy
    await process.engines[0].alarms(1)
    lossy.afflicted, lossy.free_bytes = JOURNAL_NAME, 0
    assert await process.commit(1, "b") in (FAILED, UNKNOWN)
    lossy.free_bytes = None
    await process.engines[1].reopen()
    assert len(process.file.read_batches(0).rows) == 1
    assert await process.commit(2, "b") is OK
    assert process.file.read_batches(0).rows == []


async def test_a_large_batch_goes_to_the_file_at_once(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journaled, "BODY_BYTES_MAX", 10_000)
    assert await process.commit(0, "small") is OK
    large = committed(2, name("large"), outcome=Outcome(200, (), b"x" * 20_000))
    engine = process.engines[0]
    assert await engine.commit(Batch(NOW, 2, [large], tallies={("default", "trade"): Tally(records=2)})) is OK
    # In the journal are its number, and that the file has it.
    assert [[len(row.body) < 1_000 for row in group] for group in process.file.groups] == [[True], [True], []]
    assert len(await process.inner[0].load([name("small"), name("large")])) == 2
    process.tokens[0] = 2
    assert await process.commit(0, "after") is OK
    process.kill()
    opened = await engine.open()
    assert (opened.last_token, opened.tallies) == (3, {("default", "trade"): Tally(records=2)})
    assert await process.holds(0, "small", "large", "after") == ["after", "large", "small"]


async def test_an_incident_behind_an_acknowledgement_is_a_new_one(path: Path) -> None:
    process = await Process(path).open()
    engine = process.engines[0]
    assert await engine.commit(Batch(NOW, 1, incidents=[incident(1)])) is OK
    (first,) = await engine.list_incidents("default", "trade", 0, 10)
    assert await engine.commit(Batch(NOW, 1, acknowledged=[first.id])) is OK
    assert await engine.commit(Batch(NOW, 1, incidents=[incident(1)])) is OK
    process.kill()
    process = await Process(path).open()
    (second,) = await process.engines[0].list_incidents("default", "trade", 0, 10)
    assert (second.incident, second.id) == (incident(1), first.id + 1)
    process.kill()


# ------------------------------------------------------------------------------------------------------------ slow disk


async def test_while_a_slow_disk_syncs_the_other_tasks_go_on(path: Path) -> None:
    process = await Process(path, "auto").open()
    assert await process.commit(0, "a") is OK
    assert process.file.threads == {threading.get_ident()}
    process.journal._pace.observe(10.0)
    gate = Gate()
    process.file.gates.append(gate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.commit, 0, "b")
        await entered(gate)
        # The loop runs, another shard reads, and one that opens waits for the connection instead of breaking in.
        assert await process.holds(1, "a") == []
        nursery.start_soon(process.engines[2].reopen)
        nursery.start_soon(process.commit, 3, "c")
        await trio.testing.wait_all_tasks_blocked()
        written = len(process.file.groups)
        gate.opened.set()
    assert written == 2
    assert len(process.file.threads) > 1
    assert [[row.shard for row in group] for group in process.file.groups] == [[0], [0], [3]]
    assert await process.holds(0, "a", "b") == ["a", "b"]
    assert await process.engines[2].confirm() is OK
    assert process.file.openings == 1
    process.kill()


# ----------------------------------------------------------------------------------------------------- the end of a WAL


def wal_of(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


def change_last(file: Path) -> None:
    """One bit of the page of the last frame that counts."""
    change_at(file, HEADER_BYTES + len(frames_in(wal_of(file))) * FRAME_BYTES - 1_000)


def change_last_commit(file: Path) -> None:
    """One bit of the mark that makes the last frame the end of a transaction."""
    change_at(file, HEADER_BYTES + (len(frames_in(wal_of(file))) - 1) * FRAME_BYTES + 7)


def change_at(file: Path, position: int) -> None:
    content = bytearray(wal_of(file).read_bytes())
    content[position] ^= 1
    wal_of(file).write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(wal_of(file), HEADER_BYTES + len(frames_in(wal_of(file))) * FRAME_BYTES - 1)


def empty(file: Path) -> None:
    os.truncate(wal_of(file), 0)


def delete(file: Path) -> None:
    wal_of(file).unlink()


LOSSES = [change_last, change_last_commit, cut, empty, delete]


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_journal_that_lost_its_end_is_refused_and_found(
    path: Path, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    await written(path, "a", "b")
    lose(path / JOURNAL_NAME)
    wal = wal_of(path / JOURNAL_NAME)
    before = wal.read_bytes() if wal.exists() else b""
    for _ in range(2):
        (found,) = [f.what for f in check_directory(path).findings if f.what.startswith("journal.db: it ends at batch")]
        assert "batch 4 was on the disk" in found
        # Also in an orderly way: who is refused leaves everything as it is.
        process = Process(path)
        with pytest.raises(StorageError, match=r"journal\.db is damaged: it ends at batch [0-3],.*a backup.*--apart"):
            await process.open()
        await process.stop()
    assert wal.read_bytes() == before
    with pytest.raises(StorageError, match="it ends at batch"):
        read_held(path / JOURNAL_NAME, 0)
    with pytest.raises(StorageError, match="it ends at batch"):
        back_up(path, tmp_path / "backup", silent)


async def test_a_journal_that_was_left_in_order_has_no_end_to_lose(path: Path, tmp_path: Path) -> None:
    process = await Process(path).open()
    assert await process.commit(0, "a") is OK
    assert watermark.synced_up_to(path / JOURNAL_NAME) == 1
    await process.stop()
    assert watermark.synced_up_to(path / JOURNAL_NAME) is None
    delete(path / JOURNAL_NAME)
    keep(path, tmp_path / "backup", *FILES)
    await written(path, "b")
    keep(tmp_path / "backup", path, *FILES)
    process = await Process(path).open()
    assert await process.holds(0, "a", "b") == ["a"]
    await process.stop()


async def test_what_is_not_known_to_be_on_the_disk_is_not_missed(on_lossy: Process, lossy: LossyDisk) -> None:
    journal = Path(on_lossy.file._name)
    assert await on_lossy.commit(0, "a") is OK
    assert watermark.synced_up_to(journal) == 5
    lossy.afflicted, lossy.failing_syncs = JOURNAL_NAME, 1
    assert await on_lossy.commit(0, "b") is UNKNOWN
    assert watermark.synced_up_to(journal) == 5
    # Now that it was written and synced once more, somebody may be told of it.
    await on_lossy.engines[0].reopen()
    assert watermark.synced_up_to(journal) == 6


async def test_commits_that_do_not_sync_leave_no_number_and_heed_the_one_that_is_there(path: Path) -> None:
    journal = Journal(JournalFile(path / JOURNAL_NAME, "process"), "never")
    await journal.open(0, 0)
    assert await journal.append(0, 0, journal_rows.encode(Batch(NOW, 1))) == (OK, 1)
    assert watermark.synced_up_to(path / JOURNAL_NAME) is None
    journal._file.close(tidy=False)
    await written(path)
    noted = watermark.Watermark(path / JOURNAL_NAME)
    noted.note(2)
    noted.close()
    with pytest.raises(StorageError, match="it ends at batch 1, and batch 2 was on the disk"):
        await Journal(JournalFile(path / JOURNAL_NAME, "process"), "never").open(0, 0)


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("large", [True, False])
async def test_a_file_that_lost_its_end_is_refused_or_brought_up_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None], large: bool
) -> None:
    monkeypatch.setattr(journaled, "BODY_BYTES_MAX", 10_000)
    process = await Process(path, rows=1).open()
    assert await process.commit(0, "small") is OK
    await process.engines[0].alarms(1)
    outcome = Outcome(200, (), b"x" * (20_000 if large else 20))
    assert await process.engines[0].commit(Batch(NOW, 2, [committed(2, name("last"), outcome=outcome)])) is OK
    await process.engines[0].alarms(1)
    process.kill()
    lose(path / shard_name(0))
    if large or lose in (empty, delete):
        # The journal does not have it any more, or never had.
        assert re.search("shard 0: its file ends at batch [01], and the journal goes on at [12]:", await refusal(path))
        assert any(f.shard == 0 and "lost its end" in f.what for f in check_directory(path).findings)
    else:
        process = await Process(path).open()
        assert await process.holds(0, "last") == ["last"]
        await process.stop()


# --------------------------------------------------------------------------------------------------- what fits together


async def written(path: Path, *keys: str, behind: bool = False) -> None:
    """Commit on shards 0 and 1, then die with all of it in the journal, or in the files (``behind``)."""
    process = await Process(path).open()
    for key in keys:
        assert (await process.together(key, key)) == [OK] * 2
        for engine in process.engines[: 2 if behind else 0]:
            await engine.alarms(1)
    process.kill()


def keep(path: Path, target: Path, *names: str) -> None:
    """Copy files and what is beside them, as who copies a directory by hand does."""
    target.mkdir(exist_ok=True)
    for file in names:
        for suffix in ("", "-wal", watermark.SUFFIX):
            (target / (file + suffix)).unlink(missing_ok=True)
            if (path / (file + suffix)).exists():
                shutil.copyfile(path / (file + suffix), target / (file + suffix))


async def refusal(path: Path) -> str:
    process = Process(path)
    with pytest.raises(StorageError) as caught:
        await process.open()
    process.kill()
    return str(caught.value)


FILES = (JOURNAL_NAME, *(shard_name(shard) for shard in range(SHARDS)))


async def test_an_older_file_of_a_shard_is_refused(path: Path, tmp_path: Path) -> None:
    await written(path, "a", behind=True)
    keep(path, tmp_path / "backup", *FILES)
    await written(path, "b", "c", behind=True)
    keep(tmp_path / "backup", path, shard_name(1))
    assert re.search("shard 1: its file ends at batch [12], and the journal goes on at [34]:", await refusal(path))
    findings = check_directory(path).findings
    assert any(f.shard == 1 and "from one backup" in f.what for f in findings)


async def test_an_older_journal_is_refused(path: Path, tmp_path: Path) -> None:
    await written(path, "a", behind=True)
    keep(path, tmp_path / "backup", *FILES)
    await written(path, "b", "c", behind=True)
    keep(tmp_path / "backup", path, JOURNAL_NAME)
    assert re.search("shard 0: its file includes batch [56], and the journal ends at batch [12]:", await refusal(path))
    assert {f.shard for f in check_directory(path).findings if "was restored without" in f.what} == {0, 1}


async def test_an_empty_journal_is_refused(path: Path) -> None:
    await written(path, "a", behind=True)
    for suffix in ("", "-wal", "-shm"):
        path.with_name("data").joinpath(JOURNAL_NAME + suffix).unlink(missing_ok=True)
    create_journal(path / JOURNAL_NAME)
    assert "the journal ends at batch 0" in await refusal(path)


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("keys", [(), ("a",)])
async def test_a_journal_of_another_directory_is_refused(
    tmp_path: Path, durability: sqlite_wal.Durability, keys: tuple[str, ...]
) -> None:
    for one in ("one", "other"):
        DataDirectory.open(tmp_path / one, SHARDS).close()
        await written(tmp_path / one, *keys)
    keep(tmp_path / "other", tmp_path / "one", JOURNAL_NAME)
    journal = Journal(JournalFile(tmp_path / "one" / JOURNAL_NAME, durability), "never")
    for shard in range(SHARDS):
        inner = SqliteEngine(tmp_path / "one" / shard_name(shard), threads="never", shard=shard, shards=SHARDS)
        with pytest.raises(StorageError, match="of another directory"):
            await JournaledEngine(shard, inner, journal).open()
    assert {finding.shard for finding in check_directory(tmp_path / "one").findings} == set(range(SHARDS))


async def test_a_directory_without_its_journal_is_refused(path: Path) -> None:
    (path / JOURNAL_NAME).unlink()
    with pytest.raises(StartError, match=r"has lost journal\.db, .* `idemactor restore --replace BACKUP DIR`"):
        DataDirectory.open(path)
    assert "journal.db cannot be read" in check_directory(path).findings[0].what
    assert not (path / JOURNAL_NAME).exists()


@pytest.mark.parametrize("lost", [shard_name(1), JOURNAL_NAME])
async def test_a_lost_file_is_not_put_back_alone_and_the_way_out_that_is_named_leads_out(
    path: Path, tmp_path: Path, lost: str
) -> None:
    # Keys are written to any shard here, which no restore takes.
    back_up(path, tmp_path / "sound", silent)
    await written(path, "a", behind=True)
    back_up(path, tmp_path / "backup", silent)
    await written(path, "b", "c", behind=True)
    (path / lost).unlink()
    with pytest.raises(StartError, match=f"has lost {lost}, .*alone does not fit.*`idemactor restore --replace"):
        DataDirectory.open(path)
    shutil.copytree(path, tmp_path / "alone")
    keep(tmp_path / "backup", tmp_path / "alone", lost)
    assert "restore the whole directory from one backup" in await refusal(tmp_path / "alone")
    restore(tmp_path / "sound", path, silent, replaced=True)
    DataDirectory.open(path).close()


async def test_a_whole_directory_from_one_backup_is_taken(path: Path, tmp_path: Path) -> None:
    await written(path, "a", behind=True)
    keep(path, tmp_path / "backup", *FILES)
    await written(path, "b", "c", behind=True)
    keep(tmp_path / "backup", path, *FILES)
    process = await Process(path).open()
    assert await process.holds(0, "a", "b") == ["a"]
    await process.stop()


async def test_an_older_file_whose_batches_are_all_there_is_brought_up_again(path: Path, tmp_path: Path) -> None:
    await written(path, "a")
    keep(path, tmp_path / "backup", *FILES)
    await written(path)
    keep(tmp_path / "backup", path, shard_name(1))
    process = await Process(path).open()
    assert await process.holds(1, "a") == ["a"]
    await process.stop()


async def test_a_journal_deleted_or_replaced_while_in_use_ends_all_writing(path: Path, tmp_path: Path) -> None:
    process = await Process(path).open()
    assert await process.commit(0, "a") is OK
    create_journal(tmp_path / "other.db")
    (tmp_path / "other.db").rename(path / JOURNAL_NAME)
    assert await process.together("b", "b", "b", "b") == [FAILED] * 4
    for engine in process.engines:
        with pytest.raises(StorageError, match="was replaced"):
            await engine.reopen()
    (path / JOURNAL_NAME).unlink()
    with pytest.raises(StorageError, match=r"journal\.db is missing"):
        await process.engines[0].reopen()
    assert not (path / JOURNAL_NAME).exists()
    process.kill()


async def test_a_journal_of_another_program_or_release_is_refused(path: Path) -> None:
    for pragma, words in (("user_version", "start the release"), ("application_id", "not a file of idemactor")):
        connection = apsw.Connection(str(path / JOURNAL_NAME))
        connection.pragma(pragma, journal_file.FORMAT + 1)
        connection.close()
        assert words in await refusal(path)
        assert any(words in finding.what for finding in check_directory(path).findings)


def body(connection: apsw.Connection) -> None:
    connection.execute("UPDATE batches SET body = x'c1' WHERE shard = 1")


def gap(connection: apsw.Connection) -> None:
    connection.execute("DELETE FROM batches WHERE seq = (SELECT min(seq) FROM batches WHERE shard = 1)")


def end(connection: apsw.Connection) -> None:
    connection.execute("INSERT OR REPLACE INTO shards VALUES (1, 100)")


@pytest.mark.parametrize("damage", [body, gap, end])
async def test_damage_to_the_journal_is_refused_and_found(
    path: Path, damage: Callable[[apsw.Connection], None]
) -> None:
    await written(path, "a", "b")
    assert [report.journal_batches for report in check_directory(path).shards] == [2, 2, 0, 0]
    connection = apsw.Connection(str(path / JOURNAL_NAME))
    damage(connection)
    connection.close()
    assert "shard 1" in await refusal(path) or "batch that cannot be read" in await refusal(path)
    assert {finding.shard for finding in check_directory(path).findings if "journal" in finding.what} == {1}


async def test_batches_of_a_shard_that_is_none_of_ours_are_found(path: Path) -> None:
    connection = apsw.Connection(str(path / JOURNAL_NAME))
    connection.execute("INSERT INTO batches VALUES (1, 4, 0, x'')")
    connection.close()
    (finding,) = check_directory(path).findings
    assert finding.what == "journal.db has batches of shard 4, which is none of the 4 shards"


async def test_starting_twice_is_as_starting_once(path: Path) -> None:
    await written(path, "a", "b")
    for _ in range(2):
        process = await Process(path).open()
        assert await process.holds(0, "a", "b") == ["a", "b"]
        process.kill()
