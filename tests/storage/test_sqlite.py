from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import apsw
import pytest
import trio

from idemactor.core.keys import Identity
from idemactor.core.record import Incident, Outcome
from idemactor.errors import StorageError
from idemactor.storage import pace, rows, schema, sqlite_create, sqlite_file, sqlite_reads, sqlite_wal
from idemactor.storage.base import Batch, CommitResult, RecordQuery, StateFilter
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.sqlite_create import create_file
from tests.storage.contract import EngineContract
from tests.storage.lossy_vfs import LossyDisk
from tests.storage.samples import INTENT, NOW, Writer, committed, dispatched, name, pending


class FilePlace:
    def __init__(self, path: Path, durability: sqlite_wal.Durability = "full") -> None:
        self.path = path
        self.durability = durability

    def engine(self) -> SqliteEngine:
        return SqliteEngine(self.path, create=True, threads="never", durability=self.durability)


class TestSqliteEngine(EngineContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> FilePlace:
        return FilePlace(tmp_path / "shard.db")


class TestSqliteEngineOfOneProcess(EngineContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> FilePlace:
        return FilePlace(tmp_path / "shard.db", "process")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "shard.db"
    create_file(file, 0, 1)
    return file


@pytest.fixture
def lossy() -> Iterator[LossyDisk]:
    disk = LossyDisk(Random(1))
    yield disk
    disk.close()


@pytest.fixture
async def engine(path: Path, lossy: LossyDisk) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(path, threads="never", vfs=lossy.name)
    await engine.open()
    assert await engine.commit(ONE) is CommitResult.OK
    yield engine
    await engine.close()


ONE = Batch(NOW, 1, puts=[pending(1, name("one"))])
TWO = Batch(NOW, 2, puts=[pending(2, name("two"))])


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def holds(engine: SqliteEngine) -> list[int]:
    found = await engine.load([name("one"), name("two")])
    return sorted(entry.id for entry in found.values())


# ------------------------------------------------------------------------------------------------------ what is refused


async def refusal(engine: SqliteEngine) -> str:
    with pytest.raises(StorageError) as caught:
        await engine.open()
    assert await engine.commit(ONE) is CommitResult.FAILED
    return str(caught.value)


async def test_a_missing_file_is_never_made_anew(tmp_path: Path) -> None:
    assert "is missing" in await refusal(SqliteEngine(tmp_path / "shard.db", threads="never"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("pragma", "value", "words"),
    [("application_id", 1, "not a file of idemactor"), ("user_version", schema.FORMAT + 1, "start the release")],
)
async def test_a_file_of_another_program_or_of_a_newer_release_is_refused(
    path: Path, pragma: str, value: int, words: str
) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma(pragma, value)
    connection.close()
    assert words in await refusal(SqliteEngine(path, threads="never"))


async def test_what_is_no_database_is_refused(path: Path) -> None:
    overwrite(path, b"no database at all, but long enough to be looked at" * 100)
    assert "is damaged: file is not a database" in await refusal(SqliteEngine(path, threads="never"))


async def test_another_shards_file_is_refused(path: Path) -> None:
    assert "shard 0 of 1, not 1 of 1" in await refusal(SqliteEngine(path, shard=1, threads="never"))
    assert "shard 0 of 1, not 0 of 2" in await refusal(SqliteEngine(path, shards=2, threads="never"))


async def test_a_file_deleted_while_in_use_fails_the_next_commit(engine: SqliteEngine, path: Path) -> None:
    os.unlink(path)
    assert await engine.commit(TWO) is CommitResult.FAILED
    assert "deleted or replaced" in str(engine.last_error)
    with pytest.raises(StorageError, match="is missing"):
        await engine.reopen()
    assert path.name not in os.listdir(path.parent)


async def test_a_wal_deleted_while_in_use_is_not_silently_done_without(engine: SqliteEngine, path: Path) -> None:
    path.with_name("shard.db-wal").unlink()
    assert await engine.commit(TWO) is CommitResult.FAILED
    for _ in range(2):
        with pytest.raises(StorageError, match=r"shard\.db-wal was deleted"):
            await engine.reopen()


async def test_a_wal_deleted_after_closing_is_not_missed(engine: SqliteEngine, path: Path) -> None:
    await engine.close()
    path.with_name("shard.db-wal").unlink()
    await engine.open()
    assert await holds(engine) == [1]
    assert await engine.commit(TWO) is CommitResult.OK


async def test_a_file_replaced_while_in_use_fails_the_next_commit(engine: SqliteEngine, path: Path) -> None:
    create_file(path.with_name("other.db"), 0, 1)
    path.with_name("other.db").rename(path)
    assert await engine.commit(TWO) is CommitResult.FAILED
    with pytest.raises(StorageError, match="was replaced"):
        await engine.reopen()


async def test_a_file_deleted_while_evicted_is_not_made_anew(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "shard.db", create=True, threads="never")
    await engine.open()
    await engine.close()
    (tmp_path / "shard.db").unlink()
    with pytest.raises(StorageError, match="is missing"):
        await engine.open()


# ---------------------------------------------------------------------------------------------------------- what fails


async def test_a_failed_sync_is_unknown_and_reopening_makes_it_durable(engine: SqliteEngine, lossy: LossyDisk) -> None:
    lossy.failing_syncs = 1
    assert await engine.commit(TWO) is CommitResult.UNKNOWN
    assert await engine.commit(TWO) is CommitResult.FAILED
    with pytest.raises(StorageError):
        await holds(engine)
    await engine.reopen()
    assert await holds(engine) == [1, 2]
    assert all(not inode.dirty for inode in lossy.inodes.values())


@pytest.mark.parametrize("restarted", [True, False])
async def test_what_was_not_there_after_a_failed_sync_does_not_turn_up_later(
    path: Path, tmp_path: Path, engine: SqliteEngine, lossy: LossyDisk, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    monkeypatch.setattr(sqlite_wal, "BUSY_MS", 1)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM meta").fetchall()
    lossy.failing_syncs = 1
    assert await engine.commit(TWO) is CommitResult.UNKNOWN
    if restarted:
        engine._file.close(tidy=False)
        engine = SqliteEngine(path, threads="never", vfs=lossy.name)
        await engine.open()
    else:
        await engine.reopen()
    seen = await holds(engine)
    left = tmp_path / "left"
    os.mkdir(left)
    lossy.leave(left)
    after = SqliteEngine(left / "shard.db", threads="never")
    await after.open()
    assert await holds(after) == seen
    await after.close()
    engine._file.close(tidy=False)
    reader.close()


async def test_reopening_fails_while_the_disk_does(engine: SqliteEngine, lossy: LossyDisk) -> None:
    lossy.failing_syncs = 3
    assert await engine.commit(TWO) is CommitResult.UNKNOWN
    for _ in range(2):
        with pytest.raises(StorageError):
            await engine.reopen()
        assert await engine.confirm() is CommitResult.FAILED
    await engine.reopen()
    assert await engine.commit(TWO) is CommitResult.OK


async def test_a_full_disk_keeps_nothing_of_the_batch(engine: SqliteEngine, lossy: LossyDisk) -> None:
    lossy.free_bytes = 6_000
    assert await engine.commit(TWO) is CommitResult.UNKNOWN
    assert isinstance(engine.last_error, apsw.FullError)
    lossy.free_bytes = None
    await engine.reopen()
    assert await holds(engine) == [1]
    assert await engine.commit(TWO) is CommitResult.OK


async def test_a_read_that_fails_is_a_storage_error(path: Path, engine: SqliteEngine, lossy: LossyDisk) -> None:
    await engine.close()
    engine = SqliteEngine(path, threads="never", vfs=lossy.name)
    await engine.open()
    lossy.failing_reads = 1
    with pytest.raises(StorageError, match="cannot be read"):
        await holds(engine)
    assert await engine.commit(TWO) is CommitResult.FAILED
    await engine.reopen()
    assert await holds(engine) == [1]
    await engine.close()


async def test_a_value_that_no_column_takes_fails_its_batch_alone(engine: SqliteEngine) -> None:
    poison = pending(2, name("two"), holder="\ud800")
    assert await engine.commit(Batch(NOW, 2, puts=[pending(1, name("one"), attempt=9), poison])) is CommitResult.FAILED
    await engine.reopen()
    assert await engine.load([name("one"), name("two")]) == {name("one"): ONE.puts[0]}


async def test_nothing_is_in_the_wal_before_the_commit(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "CACHE_KIB", 16)
    await engine.reopen()
    wal = os.stat(path.with_name("shard.db-wal"))
    large = [committed(n, name(f"k{n}"), outcome=Outcome(200, (), bytes(5_000))) for n in range(2, 200)]
    unreadable = Incident(name("\ud800"), "o", 1, None, NOW, None)
    assert await engine.commit(Batch(NOW, 200, puts=large, incidents=[unreadable])) is CommitResult.FAILED
    assert os.stat(path.with_name("shard.db-wal")).st_size == wal.st_size


async def test_no_outcome_stays_without_its_record(path: Path) -> None:
    writer = Writer(Random(3))
    engine = SqliteEngine(path, threads="never")
    await engine.open()
    for _ in range(60):
        batch = writer.batch()
        assert await engine.commit(batch) is CommitResult.OK
        writer.disk.apply(batch)
    await engine.close()
    connection = apsw.Connection(str(path))
    stored = {row[0] for row in connection.execute("SELECT id FROM outcomes")}
    connection.close()
    records = {entry_id: entry.record for entry_id, entry in writer.disk.entries.items()}
    assert stored == {entry_id for entry_id, record in records.items() if record and record.outcome}


async def test_a_new_file_is_empty_whatever_an_older_one_left_beside_it(engine: SqliteEngine, path: Path) -> None:
    engine._file.close(tidy=False)
    os.unlink(path)
    os.unlink(path.with_name("shard.db-shm"))
    create_file(path, 0, 1)
    fresh = SqliteEngine(path, threads="never")
    assert (await fresh.open()).last_token == 0
    assert await holds(fresh) == []
    await fresh.close()


async def test_a_file_locked_by_another_program_fails_the_batch(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "BUSY_MS", 1)
    await engine.reopen()
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    assert await engine.commit(TWO) is CommitResult.FAILED
    other.execute("ROLLBACK")
    other.close()
    await engine.reopen()
    assert await engine.commit(TWO) is CommitResult.OK


async def test_a_failed_checkpoint_shows_at_the_next_commit(
    engine: SqliteEngine, lossy: LossyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_PAGES", 1)
    await engine.reopen()
    assert await engine.commit(TWO) is CommitResult.OK
    lossy.failing_syncs = 1
    await engine.maintain()
    assert lossy.failing_syncs == 0
    assert await engine.confirm() is CommitResult.FAILED
    assert await engine.commit(TWO) is CommitResult.FAILED
    await engine.reopen()
    assert await holds(engine) == [1, 2]


async def test_after_a_cancelled_caller_the_file_is_closed_all_the_same(path: Path) -> None:
    engine = SqliteEngine(path, threads="always")
    await engine.open()
    with trio.CancelScope() as scope:
        scope.cancel()
        await engine.close()
    assert await engine.confirm() is CommitResult.FAILED


# ---------------------------------------------------------------------------------------------------- what is damaged


async def test_two_keys_with_one_hash_are_two_keys(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rows, sqlite_reads):
        monkeypatch.setattr(module, "identity_hash", lambda _: 7)
    entries = {identity: pending(n, identity) for n, identity in enumerate(map(name, "abc"), 2)}
    assert await engine.commit(Batch(NOW, 4, puts=list(entries.values()))) is CommitResult.OK
    assert await engine.load([name("b")]) == {name("b"): entries[name("b")]}
    assert await engine.load([name("nobody")]) == {}
    assert await engine.load([*map(name, "cab"), name("nobody")]) == entries


async def test_a_key_that_is_there_twice_gets_no_answer(engine: SqliteEngine) -> None:
    assert await engine.commit(Batch(NOW, 2, puts=[pending(2, name("one"))])) is CommitResult.OK
    with pytest.raises(StorageError, match="same key"):
        await engine.load([name("one")])


async def test_a_lost_outcome_is_never_replayed_as_none(engine: SqliteEngine, path: Path) -> None:
    assert await engine.commit(Batch(NOW, 2, puts=[committed(2, name("two"))])) is CommitResult.OK
    other = apsw.Connection(str(path))
    other.execute("DELETE FROM outcomes")
    other.close()
    with pytest.raises(StorageError, match="outcome"):
        await engine.load([name("two")])


# -------------------------------------------------------------------------------------------------- syncs and the WAL


async def test_a_full_commit_is_one_sync_and_a_process_commit_none(path: Path, lossy: LossyDisk) -> None:
    for durability, syncs in (("full", 1), ("process", 0)):
        engine = SqliteEngine(path, threads="never", vfs=lossy.name, durability=durability)  # type: ignore[arg-type]
        await engine.open()
        await engine.commit(ONE)
        before = lossy.synced
        await engine.commit(TWO)
        assert lossy.synced - before == syncs
        assert engine.last_sync_s > 0
        await engine.close()


@pytest.mark.parametrize("maintained", [True, False])
async def test_the_wal_is_bounded(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch, maintained: bool
) -> None:
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_PAGES", 20)
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_LIMIT_PAGES", 60)
    await engine.reopen()
    longest = 0
    for n in range(100):
        entry = committed(n + 2, name(f"k{n}"))
        assert await engine.commit(Batch(NOW, n + 2, puts=[entry])) is CommitResult.OK
        longest = max(longest, engine.wal_pages)
        if maintained:
            await engine.maintain()
    pages = path.with_name("shard.db-wal").stat().st_size / sqlite_wal.FRAME_BYTES
    assert longest <= pages < (40 if maintained else 80)


async def test_a_reader_that_stays_does_not_make_every_commit_a_checkpoint(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_PAGES", 10)
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_LIMIT_PAGES", 10)
    await engine.reopen()
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM meta").fetchall()
    checkpoints: list[int] = []
    real = sqlite_file.ShardFile.maintain

    def counting(file: sqlite_file.ShardFile) -> None:
        checkpoints.append(file.wal_pages)
        real(file)

    monkeypatch.setattr(sqlite_file.ShardFile, "maintain", counting)
    for n in range(30):
        assert await engine.commit(Batch(NOW, n + 2, puts=[pending(n + 2, name(f"k{n}"))])) is CommitResult.OK
    assert 2 < len(checkpoints) < 25
    reader.execute("COMMIT")
    reader.close()
    assert await engine.commit(Batch(NOW, 40, puts=[pending(40, name("last"))])) is CommitResult.OK
    await engine.reopen()
    assert path.with_name("shard.db-wal").stat().st_size < 20 * sqlite_wal.FRAME_BYTES


async def test_closing_moves_the_wal_into_the_file(engine: SqliteEngine, path: Path) -> None:
    wal = path.with_name("shard.db-wal")
    assert wal.stat().st_size > 0
    await engine.close()
    assert wal.stat().st_size == 0
    await engine.open()
    assert await holds(engine) == [1]


def test_settings_are_what_the_module_says(path: Path) -> None:
    connection = apsw.Connection(str(path))
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("page_size") == sqlite_create.PAGE_BYTES
    assert connection.pragma("application_id") == schema.APPLICATION_ID
    assert connection.pragma("user_version") == schema.FORMAT
    connection.close()


def test_every_listing_uses_an_index(path: Path) -> None:
    connection = apsw.Connection(str(path))
    for state in (None, *StateFilter):
        for contested in (None, True, False):
            query = RecordQuery("default", "trade", NOW, state, contested, NOW)
            sql, bindings = rows.listing_sql(query, 0, 10)
            plan, *joins = connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings).fetchall()
            assert [str(join[3])[:48] for join in joins] == ["SEARCH deliveries USING INTEGER PRIMARY KEY (row"]
            assert "SEARCH records USING INDEX" in str(plan[3])
            assert "(tenant=? AND namespace=? AND id>?)" in str(plan[3])
    connection.close()


def test_outbox_and_operations_use_their_indexes(path: Path) -> None:
    connection = apsw.Connection(str(path))

    def plan(sql: str, *bindings: object) -> str:
        return "\n".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings))

    outbox = plan(schema.SELECT_OUTBOX, 0, 10)
    assert "SEARCH deliveries USING INDEX deliveries_open (seq>?)\nSEARCH records USING INTEGER PRIMARY KEY" in outbox
    assert "SEARCH events USING INTEGER PRIMARY KEY (rowid>?)" in outbox
    assert "SCAN deliveries" not in plan(schema.SELECT_LAST_SEQ)
    operation = plan(schema.SELECT_OPERATION, "operation", "default", "trade")
    assert "SEARCH deliveries USING COVERING INDEX deliveries_by_operation (operation_id=?)" in operation
    assert "SEARCH records USING INDEX records_endings (tomb_operation_id=?)" in operation
    assert "SCAN" not in operation
    connection.close()


async def test_what_has_no_delivery_costs_no_statement_for_one(path: Path) -> None:
    engine = SqliteEngine(path, threads="never")
    await engine.open()
    statements: list[str] = []

    def note(_: apsw.Cursor, sql: str, __: object) -> bool:
        statements.append(sql)
        return True

    assert engine._file._connection is not None
    engine._file._connection.exec_trace = note
    done = committed(2, name("two"))
    assert await engine.commit(Batch(NOW, 2, puts=[pending(1, name("one")), done])) is CommitResult.OK
    assert await engine.commit(Batch(NOW, 2, deletes=[done])) is CommitResult.OK
    tables = ("deliveries", "intents", "events")
    assert not [sql for sql in statements if any(table in sql for table in tables)]
    entry = dispatched(3, name("three"))
    assert await engine.commit(Batch(NOW, 3, puts=[entry], intents={3: INTENT})) is CommitResult.OK
    assert await engine.commit(Batch(NOW, 3, deletes=[entry])) is CommitResult.OK
    assert schema.DELETE_DELIVERY in statements
    await engine.close()


async def test_a_lost_delivery_is_never_taken_for_a_record_without_one(engine: SqliteEngine, path: Path) -> None:
    entry = dispatched(2, name("two"))
    assert await engine.commit(Batch(NOW, 2, puts=[entry], intents={2: INTENT})) is CommitResult.OK
    other = apsw.Connection(str(path))
    other.execute("DELETE FROM deliveries")
    other.close()
    for question in (
        engine.load([name("two")]),
        engine.load_ids([2]),
        engine.list_records(RecordQuery("default", "trade", NOW), 0, 10),
    ):
        with pytest.raises(StorageError, match="the delivery of entry 2 is missing"):
            await question


async def test_no_delivery_or_intent_stays_without_its_record(path: Path) -> None:
    writer = Writer(Random(4))
    engine = SqliteEngine(path, threads="never")
    await engine.open()
    for step in range(60):
        batch = writer.batch()
        assert await engine.commit(batch) is CommitResult.OK
        writer.disk.apply(batch)
        if step % 20 == 10:
            await engine.close()
            await engine.open()
    await engine.close()
    connection = apsw.Connection(str(path))
    records = {entry_id: entry.record for entry_id, entry in writer.disk.entries.items()}
    expected = {entry_id for entry_id, record in records.items() if record and record.delivery}
    for table in ("deliveries", "intents"):
        assert {row[0] for row in connection.execute(f"SELECT id FROM {table}")} == expected
    connection.close()


# ------------------------------------------------------------------------------------------------------------- threads


async def thread_of_commit(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> int:
    threads: list[int] = []
    write = sqlite_file.ShardFile.write

    def spying(file: sqlite_file.ShardFile, batch: Batch) -> CommitResult:
        threads.append(threading.get_ident())
        return write(file, batch)

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_file.ShardFile, "write", spying)
        assert await engine.commit(TWO) is CommitResult.OK
    return threads[0]


async def test_threads_may_be_forced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SqliteEngine(path, threads="always")
    await engine.open()
    assert await thread_of_commit(engine, monkeypatch) != threading.get_ident()
    assert await holds(engine) == [2]
    await engine.close()


async def test_a_commit_that_is_cancelled_in_its_thread_is_still_carried_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SqliteEngine(path, threads="always")
    await engine.open()
    write = sqlite_file.ShardFile.write

    def cancelling(file: sqlite_file.ShardFile, batch: Batch) -> CommitResult:
        trio.from_thread.run_sync(scope.cancel)
        return write(file, batch)

    monkeypatch.setattr(sqlite_file.ShardFile, "write", cancelling)
    with trio.CancelScope() as scope:
        await engine.commit(TWO)
    assert scope.cancel_called
    assert await holds(engine) == [2]
    await engine.close()


async def test_a_slow_disk_is_waited_for_in_a_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SqliteEngine(path, threads="auto")
    await engine.open()
    here = threading.get_ident()
    monkeypatch.setattr(pace, "STALL_S", 1e9)
    monkeypatch.setattr(pace, "SLOW_S", 1e9)
    assert await thread_of_commit(engine, monkeypatch) == here
    monkeypatch.setattr(pace, "STALL_S", 0.0)
    monkeypatch.setattr(pace, "SLOW_S", 0.0)
    assert await thread_of_commit(engine, monkeypatch) == here
    assert engine.threaded
    assert await thread_of_commit(engine, monkeypatch) != here
    await engine.close()


async def test_what_takes_python_long_and_the_disk_not_stays_on_the_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = passed = 0.0
    monkeypatch.setattr(pace, "perf_counter", lambda: passed)
    monkeypatch.setattr(pace, "thread_time", lambda: computed)

    def compute(*_: object) -> dict[Identity, object]:
        nonlocal computed, passed
        computed += pace.STALL_S
        passed += pace.STALL_S
        return {}

    def wait(*_: object) -> dict[Identity, object]:
        nonlocal passed
        passed += pace.STALL_S
        return {}

    engine = SqliteEngine(path, threads="auto")
    await engine.open()
    for read, slow in ((compute, False), (wait, True)):
        monkeypatch.setattr(sqlite_reads, "load", read)
        await engine.load([name("one")])
        assert engine._reads.slow is slow
    await engine.close()


def test_pace_changes_its_mind_at_two_thresholds() -> None:
    measured = pace.Pace()

    def after(seconds: float, times: int) -> bool:
        for _ in range(times):
            measured.observe(seconds)
        return measured.slow

    between = (pace.SLOW_S + pace.FAST_S) / 2
    assert not after(pace.FAST_S / 2, 50)
    assert not after(pace.STALL_S * 0.99, 1)
    assert not after(between, 100)
    assert after(pace.SLOW_S * 1.5, 100)
    assert after(between, 100)
    assert not after(pace.FAST_S / 2, 100)
    assert after(pace.STALL_S, 1)


async def test_identities_come_back_as_identities(engine: SqliteEngine) -> None:
    (found,) = await engine.load([name("one")])
    assert type(found) is Identity
    assert replace(ONE.puts[0], identity=found) == ONE.puts[0]
