"""What callers store is in no file in clear, comes back for its key, and for nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw
import pytest
import trio

from idemactor.core.delivery import Intent
from idemactor.core.keys import Identity
from idemactor.core.record import Incident, Outcome
from idemactor.errors import StorageError
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.checksums import checked_vfs
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import JournalFile, create_journal
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.sqlite_create import create_file
from tests.storage.contract import EngineContract
from tests.storage.samples import NOW, committed, dispatched, event, name

OLD: Final = b"o" * 32
NEW: Final = b"n" * 32
SECRET: Final = b"the card number is 4111"
OUTCOME: Final = Outcome(200, (("x-secret", SECRET.decode()),), SECRET)
INTENT: Final = Intent(f"text/{SECRET.decode()}", SECRET, (("x-secret", SECRET.decode()),))


class SealedPlace:
    """A shard's file and its journal; new engines have these keys."""

    def __init__(self, path: Path, rows: int = 3) -> None:
        self.path = path
        self.rows = rows
        self.keys: Sequence[bytes] = (OLD,)
        self.file: JournalFile | None = None
        create_file(path / "shard.db", 0, 1)
        create_journal(path / JOURNAL_NAME)

    def engine(self) -> JournaledEngine:
        if self.file is not None:
            self.file.close(tidy=False)
        keys = Keyring(self.keys) if self.keys else None
        self.file = JournalFile(self.path / JOURNAL_NAME)
        inner = SqliteEngine(self.path / "shard.db", threads="never", keys=keys)
        return JournaledEngine(0, inner, Journal(self.file, "never"), rows=self.rows, keys=keys)

    def holding(self, what: bytes) -> list[str]:
        """The files in which these bytes are."""
        return sorted(file.name for file in self.path.iterdir() if what in file.read_bytes())


class TestSealedEngine(EngineContract):
    @pytest.fixture(params=[1, 128])
    def disk(self, tmp_path: Path, request: pytest.FixtureRequest) -> SealedPlace:
        return SealedPlace(tmp_path, request.param)


@pytest.fixture
def place(tmp_path: Path) -> SealedPlace:
    return SealedPlace(tmp_path)


def everything() -> Batch:
    """One of each that a caller can store."""
    incident = Incident(name("k"), "operation", 9, None, NOW, OUTCOME)
    batch = Batch(NOW, 9, [committed(1, name("k"), outcome=OUTCOME), dispatched(2, name("d"))], incidents=[incident])
    batch.intents[2] = INTENT
    batch.events.append(event(7, name("k"), body=SECRET, content_type=SECRET.decode()))
    return batch


async def _has_everything(engine: JournaledEngine) -> None:
    entry = (await engine.load([name("k")]))[name("k")]
    assert entry.record is not None
    assert entry.record.outcome == OUTCOME
    assert await engine.load_intents([2]) == {2: INTENT}
    assert (await engine.load_events([7]))[7].content.body == SECRET
    (stored,) = await engine.list_incidents("default", "trade", 0, 10)
    assert stored.incident.outcome == OUTCOME


@pytest.mark.parametrize("rows", [1, 128])
async def test_what_callers_store_is_in_no_file_in_clear(tmp_path: Path, rows: int) -> None:
    place = SealedPlace(tmp_path, rows)
    engine = place.engine()
    await engine.open()
    assert await engine.commit(everything()) is CommitResult.OK
    assert place.holding(SECRET) == []
    await engine.maintain()
    assert place.holding(SECRET) == []
    again = place.engine()
    await again.open()
    await _has_everything(again)
    assert place.holding(SECRET) == []
    await again.close()
    assert place.holding(SECRET) == []


async def test_without_keys_it_would_be(place: SealedPlace) -> None:
    place.keys = ()
    engine = place.engine()
    await engine.open()
    assert await engine.commit(everything()) is CommitResult.OK
    assert place.holding(SECRET) == [f"{JOURNAL_NAME}-wal"]


async def test_keys_rotate_the_first_encrypts_and_all_decrypt(place: SealedPlace) -> None:
    engine = place.engine()
    await engine.open()
    assert await engine.commit(everything()) is CommitResult.OK
    await engine.close()
    place.keys = (NEW, OLD)
    engine = place.engine()
    await engine.open()
    await _has_everything(engine)
    assert await engine.commit(Batch(NOW, 10, [committed(1, name("k"), outcome=OUTCOME)])) is CommitResult.OK
    await engine.close()
    place.keys = (NEW,)
    with pytest.raises(StorageError, match=r"not among those.*encryption_key_file"):
        await place.engine().open()


@pytest.mark.parametrize(("keys", "words"), [((), "no key is configured"), ((NEW,), "another key|not among those")])
@pytest.mark.parametrize("behind", [False, True])
async def test_without_its_key_nothing_is_opened(
    place: SealedPlace, keys: Sequence[bytes], words: str, behind: bool
) -> None:
    engine = place.engine()
    await engine.open()
    assert await engine.commit(everything()) is CommitResult.OK
    if behind:
        await engine.close()
    place.keys = keys
    with pytest.raises(StorageError, match=words):
        await place.engine().open()


async def test_what_was_in_clear_stays_readable_when_keys_come(place: SealedPlace) -> None:
    place.keys = ()
    engine = place.engine()
    await engine.open()
    assert await engine.commit(everything()) is CommitResult.OK
    place.keys = (NEW,)
    engine = place.engine()
    await engine.open()
    await _has_everything(engine)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE outcomes SET body = (SELECT body FROM outcomes WHERE id = 3) WHERE id = 1",
        "UPDATE outcomes SET body = CAST(substr(body, 1, length(body) - 1) || 'x' AS BLOB) WHERE id = 1",
        "UPDATE outcomes SET body = (SELECT body FROM intents) WHERE id = 1",
    ],
)
async def test_what_was_moved_or_changed_is_refused(place: SealedPlace, change: str) -> None:
    engine = place.engine()
    await engine.open()
    assert await engine.commit(everything()) is CommitResult.OK
    other = committed(3, name("other"), outcome=Outcome(200, (), b"another"))
    assert await engine.commit(Batch(NOW, 9, [other])) is CommitResult.OK
    await engine.close()
    connection = apsw.Connection(str(place.path / "shard.db"), vfs=checked_vfs())
    connection.execute(change)
    connection.close()
    engine = place.engine()
    await engine.open()
    with pytest.raises(StorageError, match="changed, or moved"):
        await engine.load([name("k")])


def test_the_check_needs_no_key(tmp_path: Path) -> None:
    async def fill() -> None:
        with DataDirectory.open(tmp_path / "data", 1) as directory:
            keys = Keyring([OLD])
            inner = SqliteEngine(directory.engine_path(0), threads="never", keys=keys)
            journal = Journal(JournalFile(directory.journal_path(0)), "never")
            engine = JournaledEngine(0, inner, journal, keys=keys)
            opened = await engine.open()
            entry = committed(1, Identity("default", "trade", "k"), outcome=OUTCOME)
            assert await engine.commit(Batch(NOW, opened.last_token + 1, [entry])) is CommitResult.OK

    trio.run(fill)
    assert not [f for f in check_directory(tmp_path / "data").findings if "batch" in f.what or "read" in f.what]
