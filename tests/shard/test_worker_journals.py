"""A journal for each worker: another number of them loses nothing, whatever step of the change is the last one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
import trio

from idemactor.core.keys import Identity
from idemactor.core.record import Entry
from idemactor.errors import StartError
from idemactor.shard.start import open_engines, settle_journals
from idemactor.storage import directory as directory_module
from idemactor.storage import journal_file
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import JournalFile
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.layout import journal_name, write_meta
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.watermark import SUFFIX as SYNCED_SUFFIX
from tests.storage.samples import NOW, pending

SHARDS: Final = 5


class _PowerLossError(OSError):
    """The moment at which a test lets everything end."""


def write(path: Path, keys: Sequence[str], *, behind: bool = False) -> None:
    """A batch for each key in every shard; ``behind``: also in the shards' files, as an end in good order leaves it."""

    async def run() -> None:
        with DataDirectory.open(path) as directory:
            journals: dict[Path, Journal] = {}
            for shard in range(SHARDS):
                place = directory.journal_path(shard)
                journal = journals.setdefault(place, journals.get(place) or Journal(JournalFile(place), "never"))
                file = SqliteEngine(directory.engine_path(shard), threads="never", shard=shard, shards=SHARDS)
                engine = JournaledEngine(shard, file, journal)
                state = await engine.open()
                for key in keys:
                    entry = pending(_number(key), Identity("t", "n", key))
                    assert await engine.commit(Batch(NOW, state.last_token, [entry])) is CommitResult.OK
                if behind:
                    await engine.close()
            if behind:
                for journal in journals.values():
                    await journal.close()

    trio.run(run)


def _number(key: str) -> int:
    return int.from_bytes(key.encode(), "big")


def held(path: Path, keys: Sequence[str]) -> bool:
    """Whether every shard has all keys."""

    async def run() -> bool:
        with DataDirectory.open(path) as directory:
            async with open_engines(directory, "full") as engines:
                wanted = [Identity("t", "n", key) for key in keys]
                found: list[dict[Identity, Entry]] = [await engine.load(wanted) for engine, _ in engines]
                return all(len(entries) == len(keys) for entries in found)

    return trio.run(run)


def settle(path: Path, workers: int) -> None:
    async def run() -> None:
        with DataDirectory.open(path, workers=workers) as directory:
            if workers > 1:
                directory.claim(range(directory.shards))
            await settle_journals(directory, "full", workers)
            assert directory.workers == workers

    trio.run(run)


def journals(path: Path) -> set[str]:
    return {file.name for file in path.glob("journal*.db")}


def journal_findings(path: Path) -> list[str]:
    """What ``check`` says of journals; the entries of these tests are in every shard, which it finds odd."""
    return [finding.what for finding in check_directory(path).findings if "journal" in finding.what]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    DataDirectory.open(tmp_path / "data", SHARDS).close()
    return tmp_path / "data"


def test_any_number_after_any_other_keeps_everything(path: Path) -> None:
    chance = random.Random(seed := random.randrange(2**32))
    keys: list[str] = []
    for turn in range(12):
        workers = chance.randint(1, SHARDS)
        settle(path, workers)
        assert journals(path) == {journal_name(worker, workers) for worker in range(workers)}, f"seed {seed}"
        assert {file.name.removesuffix(SYNCED_SUFFIX) for file in path.glob("*" + SYNCED_SUFFIX)} <= journals(path)
        keys.append(f"k{turn:02}")
        write(path, keys[-1:], behind=chance.random() < 0.5)
        assert journal_findings(path) == [], f"seed {seed}"
        assert held(path, keys), f"seed {seed}"


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_the_last_step_of_a_change_may_be_any(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    settle(path, before)
    write(path, ["a", "b"])
    assert all(report.journal_batches == 2 for report in check_directory(path).shards)
    steps = 0
    while True:
        copy = tmp_path / f"copy-{steps}"
        shutil.copytree(path, copy)
        with monkeypatch.context() as patched:
            if not _ends_after(steps, copy, after, patched):
                break
        assert all("not needed any more" in what for what in journal_findings(copy))
        assert held(copy, ["a", "b"])
        settle(copy, after)
        assert held(copy, ["a", "b"])
        assert journals(copy) >= {journal_name(worker, after) for worker in range(after)}
        steps += 1
    # A journal for each worker, the meta file, and at least one old file that is removed.
    assert steps >= after + 2


def _ends_after(steps: int, path: Path, workers: int, patched: pytest.MonkeyPatch) -> bool:
    """Change the number of workers and let the world end before step ``steps``; whether there was one."""
    left = steps

    def counted(real: Any) -> Any:
        def step(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                raise _PowerLossError
            left -= 1
            return real(*arguments, **named)

        return step

    patched.setattr(directory_module, "create_journal", counted(journal_file.create_journal))
    patched.setattr(directory_module, "write_meta", counted(write_meta))
    patched.setattr(directory_module, "_remove_journals", counted(directory_module._remove_journals))
    try:
        settle(path, workers)
    except (StartError, _PowerLossError):
        return True
    return False


def test_a_journal_of_before_the_change_is_refused(path: Path, tmp_path: Path) -> None:
    settle(path, 2)
    write(path, ["a"], behind=True)
    for name in journals(path):
        shutil.copyfile(path / name, tmp_path / name)
    settle(path, 3)
    write(path, ["b"], behind=True)
    settle(path, 2)
    shutil.copyfile(tmp_path / journal_name(1, 2), path / journal_name(1, 2))
    with pytest.raises(StartError, match="was restored without the other"):
        held(path, ["a"])
    assert {f.shard for f in check_directory(path).findings if "was restored without" in f.what} == {1, 3}


def test_a_file_without_room_keeps_the_journals_of_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be read all the same, which must not be taken for its holding what the journal has."""
    write(path, ["a"])
    before = journals(path)
    with monkeypatch.context() as patched:
        patched.setattr(SqliteEngine, "commit", _no_room)
        with pytest.raises(StartError, match="make room, or start with as many workers as before"):
            settle(path, 2)
    assert journals(path) == before
    settle(path, 2)
    assert held(path, ["a"])


async def _no_room(engine: SqliteEngine, _batch: Batch) -> CommitResult:
    engine._file.last_error = apsw.FullError("database or disk is full")
    return CommitResult.FAILED


def test_a_worker_whose_journal_is_lost_is_not_served(path: Path) -> None:
    settle(path, 3)
    (path / journal_name(1, 3)).unlink()
    with pytest.raises(StartError, match=r"has lost journal-1-of-3\.db, and an empty one would forget"):
        DataDirectory.open(path, workers=3)


def test_what_is_in_the_wrong_journal_is_found(path: Path) -> None:
    settle(path, 2)
    connection = apsw.Connection(str(path / journal_name(1, 2)))
    connection.execute("INSERT INTO batches VALUES (1, 2, 0, x''), (2, 9, 0, x'')")
    connection.close()
    (path / "journal.db").write_bytes(b"")
    assert journal_findings(path) == [
        "journal-1-of-2.db has batches of shard 2, which is another worker's",
        "journal-1-of-2.db has batches of shard 9, which is none of the 5 shards",
        "journal.db is of another number of workers than the 2 of before, and not needed any more",
    ]


def test_each_shard_has_one_owner_at_a_time(path: Path) -> None:
    with DataDirectory.open(path, workers=2) as directory:
        directory.claim([0, 2, 4])
        with pytest.raises(StartError, match="in use by process"):
            DataDirectory.open(path, workers=2)
        with pytest.raises(StartError, match=r"shard-0002\.lock is locked"):
            directory.claim([1, 2])


def test_more_workers_than_shards_make_nothing(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="has 2 shards and 3 workers are to serve it"):
        DataDirectory.open(tmp_path / "new", 2, workers=3)
    assert not (tmp_path / "new" / "idemactor.json").exists()
