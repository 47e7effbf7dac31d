"""A file or journal of the first format goes on where it was, as one of the present."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from idemactor.core.delivery import Ending
from idemactor.core.keys import identity_hash, shard_of
from idemactor.core.record import Entry, Tombstone
from idemactor.core.tally import Tally
from idemactor.errors import StorageError
from idemactor.storage import schema, sqlite_create
from idemactor.storage.base import Batch, CommitResult, Opened, StoredIncident
from idemactor.storage.check import Report, Severity, check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import JournalFile, Row
from idemactor.storage.journal_rows import decode
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.layout import shard_name
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.sqlite_create import create_file, holds_nothing
from tests.storage import format_1
from tests.storage.lossy_vfs import LossyDisk
from tests.storage.samples import INTENT, NOW, dispatched, event, name

TALLIES = {("default", "trade"): Tally(records=3, pending=1, committed=1, contested=1, incidents=1)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    format_1.make_file(tmp_path / "shard.db")
    return tmp_path / "shard.db"


def layout(path: Path) -> dict[str, object]:
    connection = apsw.Connection(str(path))
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found: dict[str, object] = {table: list(connection.execute(f"PRAGMA table_xinfo({table})")) for table in tables}
        found["indexes"] = sorted(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index'"))
        found["version"] = connection.pragma("user_version")
        found["meta"] = list(connection.execute("SELECT format FROM meta"))
        found["integrity"] = connection.pragma("integrity_check")
        return found
    finally:
        connection.close()


async def opened(path: Path, vfs: str | None = None) -> SqliteEngine:
    """The file, opened, with all that it had before."""
    engine = SqliteEngine(path, threads="never", vfs=vfs)
    assert await engine.open() == Opened(5, NOW, TALLIES)
    await has_everything(engine)
    return engine


async def has_everything(engine: SqliteEngine | JournaledEngine) -> None:
    assert await engine.load([*format_1.ENTRIES, name("nobody")]) == format_1.ENTRIES
    assert await engine.list_incidents("default", "trade", 0, 9) == [StoredIncident(1, format_1.LATE)]
    assert await engine.outbox(0, 1_000) == []
    assert await engine.load_intents([1, 4, 5]) == {}


async def test_an_upgraded_file_is_as_a_new_one(path: Path, tmp_path: Path) -> None:
    await (await opened(path)).close()
    create_file(tmp_path / "new.db", 0, 1)
    assert layout(path) == layout(tmp_path / "new.db")


async def test_an_upgraded_file_takes_deliveries(path: Path) -> None:
    engine = await opened(path)
    buried = Tombstone(7, None, "operation-7", NOW + 9, ending=Ending.CANCELLED)
    entries = [dispatched(6, name("six")), Entry(7, name("seven"), None, buried, NOW + 9)]
    batch = Batch(NOW, 7, entries, intents={6: INTENT}, events=[event(1)])
    assert await engine.commit(batch) is CommitResult.OK
    await engine.close()
    assert (await engine.open()).last_token == 7
    assert await engine.load_ids([6, 7]) == {6: entries[0], 7: entries[1]}
    assert [each.id for each in await engine.outbox(0, 1_000)] == [1, 6]
    assert await engine.find_operation("default", "trade", "operation-7") == name("seven")
    assert await engine.load(list(format_1.ENTRIES)) == format_1.ENTRIES
    await engine.close()


def statements() -> int:
    """How many an upgrade has, that of the version included."""
    return sum(1 for line in schema.UPGRADE.split(";") if line.strip()) + 1


@pytest.mark.parametrize("step", range(1, statements() + 1))
async def test_an_upgrade_that_stops_half_way_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    real = sqlite_create.upgrade

    def stopping(connection: apsw.Connection) -> None:
        seen: list[str] = []

        def trace(_: apsw.Cursor, sql: str, __: object) -> bool:
            if not sql.startswith(("SAVEPOINT", "ROLLBACK", "RELEASE")):
                seen.append(sql)
            # The first is the question for the version.
            if len(seen) > step:
                raise apsw.FullError("database or disk is full")
            return True

        connection.exec_trace = trace
        real(connection)

    before = layout(path)
    with monkeypatch.context() as patched:
        patched.setattr("idemactor.storage.sqlite_file.upgrade", stopping)
        with pytest.raises(StorageError, match="disk is full"):
            await SqliteEngine(path, threads="never").open()
    assert layout(path) == before
    await (await opened(path)).close()
    assert layout(path)["version"] == schema.FORMAT


@pytest.mark.parametrize("failing", [0, 1, 2, 3, 4])
async def test_whatever_a_power_loss_leaves_of_an_upgrade_opens(path: Path, tmp_path: Path, failing: int) -> None:
    disk = LossyDisk(Random(failing))
    engine = SqliteEngine(path, threads="never", vfs=disk.name)
    disk.failing_syncs = failing
    try:
        await engine.open()
    except StorageError:
        assert failing > 0
    engine._file.close(tidy=False)
    left = tmp_path / "left"
    os.mkdir(left)
    disk.leave(left)
    disk.close()
    await (await opened(left / "shard.db")).close()
    assert layout(left / "shard.db")["integrity"] == "ok"


async def test_a_full_disk_is_said_and_the_old_file_stays(path: Path) -> None:
    disk = LossyDisk(Random(1))
    disk.free_bytes = 6_000
    engine = SqliteEngine(path, threads="never", vfs=disk.name)
    with pytest.raises(StorageError, match="full"):
        await engine.open()
    disk.free_bytes = None
    await (await opened(path, disk.name)).close()
    disk.close()


def test_an_unfinished_file_of_then_holds_nothing(tmp_path: Path) -> None:
    for filled in (True, False):
        file = tmp_path / f"{filled}.db"
        format_1.make_file(file, filled=filled)
        assert holds_nothing(file) is not filled


# ------------------------------------------------------------------------------------------------------- the journal


def test_a_body_of_then_is_read() -> None:
    batch = decode(format_1.journal_body())
    assert {entry.identity: entry for entry in batch.puts} == format_1.ENTRIES
    assert [(entry.id, entry.identity) for entry in batch.deletes] == [(2, name("two"))]
    assert (batch.incidents, batch.acknowledged, batch.tallies) == ([format_1.LATE], [7], TALLIES)
    assert (batch.now_ms, batch.last_token) == (NOW, 5)
    assert (batch.intents, batch.undelivered, batch.events, batch.acked) == ({}, [], [], [])


def test_every_byte_of_then_that_is_cut_off_is_noticed() -> None:
    body = format_1.journal_body()
    for size in range(len(body)):
        with pytest.raises(StorageError):
            decode(body[:size])


def with_journal(directory: Path) -> int:
    """A directory of one shard whose server was killed then, with all that it had in the journal; its number there."""
    with DataDirectory.open(directory, 1) as data:
        journal = JournalFile(data.journal_path(0))
        seq = journal.open()
        assert journal.append([Row(seq + 1, 0, seq, format_1.journal_body())], {}) is CommitResult.OK
        journal.close(tidy=True)
        for file in directory.glob("shard-0000.db*"):
            file.unlink()
        format_1.make_file(data.engine_path(0), journal_seq=seq, filled=False)
    return seq + 1


async def test_a_directory_of_then_goes_on_where_it_was(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    seq = with_journal(directory)
    report = check_directory(directory)
    assert (others(report), [shard.journal_batches for shard in report.shards]) == ([], [1])
    for _ in range(2):
        file = JournalFile(directory / JOURNAL_NAME)
        inner = SqliteEngine(directory / shard_name(0), threads="never")
        engine = JournaledEngine(0, inner, Journal(file, "never"))
        assert await engine.open() == Opened(5, NOW, TALLIES, seq)
        await has_everything(engine)
        await engine.close()
        file.close(tidy=True)
    report = check_directory(directory)
    assert (others(report), [shard.journal_batches for shard in report.shards]) == ([], [0])


# --------------------------------------------------------------------------------------------------------- the check


def fill(directory: Path) -> Path:
    """A directory with a sound file of then, as far as a check of it goes; the file."""
    DataDirectory.open(directory, 1).close()
    path = directory / shard_name(0)
    assert all(shard_of(identity_hash(identity), 1) == 0 for identity in format_1.ENTRIES)
    (seq,) = [row[0] for row in query(path, "SELECT journal_seq FROM meta")]
    path.unlink()
    format_1.make_file(path, journal_seq=seq)
    return path


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def others(report: Report) -> list[str]:
    """What is found beside that a file of then has no checksums."""
    return [finding.what for finding in report.findings if "has no checksums" not in finding.what]


def digests(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}


def test_a_file_of_then_is_checked_and_left_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    fill(directory)
    before = digests(directory)
    report = check_directory(directory)
    assert digests(directory) == before
    assert others(report) == []
    assert [finding.severity for finding in report.findings] == [Severity.WARNING]
    (shard,) = report.shards
    assert (shard.pending, shard.committed, shard.tombstones, shard.incidents) == (1, 1, 2, 1)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("UPDATE records SET attempt = 0 WHERE id = 1", "an attempt below 1"),
        ("UPDATE records SET lease_expires_at = NULL WHERE id = 1", "unsettled records without a lease"),
        ("DELETE FROM outcomes", "an outcome that is not there"),
        ("UPDATE meta SET format = 2", "its meta row says format 2, its header 1"),
    ],
)
def test_damage_to_a_file_of_then_is_found(tmp_path: Path, sql: str, what: str) -> None:
    query(fill(tmp_path / "data"), sql)
    assert any(what in finding.what for finding in check_directory(tmp_path / "data").findings)
