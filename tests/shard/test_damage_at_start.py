"""What a start finds damaged costs the shards that it has to cost, and no others; what is a mistake is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import apsw
import pytest
import trio

from idemactor.core.record import Outcome
from idemactor.errors import StartError, UnfitError
from idemactor.shard.start import FoundShards, open_engines, open_shards, settle_journals
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.layout import journal_name, shard_name
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite_create import PAGE_BYTES
from tests.storage.samples import NOW, committed, name

T = TypeVar("T")

SHARDS: Final = 3
JOURNAL: Final = journal_name(0, 1)
OTHER_SHARDS: Final = {0: [1, 2], 1: [0, 2], 2: [0, 1]}


async def write(found: FoundShards, shard: int, number: int, size: int = 10) -> None:
    """One key, whose outcome fills ``size`` bytes with its number."""
    entry = committed(number, name(f"key-{number}"), outcome=Outcome(200, (), bytes([number]) * size))
    state = found.opened[shard]
    batch = Batch(NOW + number, max(state.last_token, number), [entry])
    assert await found.engines[shard].commit(batch) is CommitResult.OK


async def write_behind(found: FoundShards, shard: int) -> None:
    await found.engines[shard].alarms(1)


async def keys(found: FoundShards, shard: int) -> set[int]:
    """The numbers of the keys that a shard has, each with the outcome that it was given."""
    entries = await found.engines[shard].load([name(f"key-{number}") for number in range(100)])
    for entry in entries.values():
        assert entry.record is not None
        assert entry.record.outcome is not None
        assert set(entry.record.outcome.body) == {entry.id}
    return {entry.id for entry in entries.values()}


def on(path: Path, story: Callable[[FoundShards], Awaitable[T]], *, workers: int = 1) -> T:
    """Do something with what a start finds."""

    async def run() -> T:
        with DataDirectory.open(path, workers=workers, whole=False) as directory:
            if workers > 1:
                directory.claim(range(directory.shards))
            await settle_journals(directory, "full", workers)
            async with open_shards(directory, "full") as found:
                return await story(found)

    return trio.run(run)


def killed_after(path: Path, story: Callable[[FoundShards], Awaitable[object]], *, workers: int = 1) -> Path:
    """A copy of the directory as a server leaves it that was killed after ``story``, with nothing left in a WAL."""
    left = path.with_name("left")

    async def run(found: FoundShards) -> None:
        await story(found)
        shutil.copytree(path, left)

    on(path, run, workers=workers)
    for file in left.glob("*.db"):
        connection = apsw.Connection(str(file))
        connection.pragma("user_version")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()
    return left


def flip(file: Path, position: int) -> None:
    """One bit of a file changes."""
    content = bytearray(file.read_bytes())
    content[position] ^= 8
    file.write_bytes(content)


def page_with(file: Path, wanted: bytes) -> int:
    """Where the only page that holds this begins."""
    content = file.read_bytes()
    pages = {at // PAGE_BYTES for at in range(0, len(content), PAGE_BYTES) if wanted in content[at : at + PAGE_BYTES]}
    assert pages, "no page holds it"
    return min(pages) * PAGE_BYTES


def meta_page(file: Path) -> int:
    """Where the page begins that has the row that every opening reads."""
    connection = apsw.Connection(str(file))
    try:
        return (int(connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'meta'").get) - 1) * PAGE_BYTES
    finally:
        connection.close()


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    """A directory with a key in each shard, closed in good order."""
    path = tmp_path / "data"
    DataDirectory.open(path, SHARDS).close()

    async def story(found: FoundShards) -> None:
        for shard in range(SHARDS):
            await write(found, shard, shard + 1)

    on(path, story)
    return path


def flipped(file: Path) -> None:
    flip(file, meta_page(file) + PAGE_BYTES - 30)


def flipped_where_checksums_are_announced(file: Path) -> None:
    flip(file, 20)


def cut(file: Path) -> None:
    os.truncate(file, 10)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: Final = (flipped, flipped_where_checksums_are_announced, cut, emptied, Path.unlink, a_directory)


# ---------------------------------------------------------------------------------------------------- a shard's file


@pytest.mark.parametrize("damaged", range(SHARDS))
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_costs_itself_alone_and_comes_back_when_it_is_put_right(
    path: Path, damage: Callable[[Path], None], damaged: int
) -> None:
    file = path / shard_name(damaged)
    good = file.read_bytes()
    damage(file)

    async def story(found: FoundShards) -> None:
        assert sorted(found.opened) == OTHER_SHARDS[damaged]
        assert found.written_ms > NOW
        [(shard, error)] = found.damaged.items()
        assert shard == damaged
        assert file.name in str(error)
        for shard in OTHER_SHARDS[damaged]:
            assert await keys(found, shard) == {shard + 1}
            await write(found, shard, 10 + shard)
        with pytest.raises(type(error)):
            await found.engines[damaged].reopen()
        if file.is_dir():
            file.rmdir()
        file.write_bytes(good)
        await found.engines[damaged].reopen()
        assert await keys(found, damaged) == {damaged + 1}

    on(path, story)
    assert "damaged" not in str(check_directory(path).findings)


def test_where_nothing_can_be_served_the_start_is_refused_with_the_list(path: Path) -> None:
    for shard in range(SHARDS):
        flipped(path / shard_name(shard))
    with pytest.raises(StartError, match="no shard can be read") as refused:
        on(path, keys_of_nobody)
    for shard in range(SHARDS):
        assert shard_name(shard) in str(refused.value)
    assert "idemactor check" in str(refused.value)


async def keys_of_nobody(_found: FoundShards) -> None:
    raise AssertionError("it was served")


def test_whoever_cannot_say_that_something_is_missing_is_refused(path: Path) -> None:
    flipped(path / shard_name(1))

    async def story() -> None:
        with DataDirectory.open(path) as directory:
            async with open_engines(directory, "full"):
                raise AssertionError("it was opened")

    with pytest.raises(StartError, match=shard_name(1)):
        trio.run(story)


# --------------------------------------------------------------------------------------------------------- mistakes


def swapped(path: Path) -> None:
    for old, new in ((0, 9), (1, 0), (9, 1)):
        (path / shard_name(old)).rename(path / shard_name(new))


def of_the_future(path: Path) -> None:
    connection = apsw.Connection(str(path / shard_name(1)))
    connection.pragma("user_version", 99)
    connection.close()


def of_another_directory(path: Path) -> None:
    DataDirectory.open(path.with_name("other"), SHARDS).close()
    shutil.copy(path.with_name("other") / shard_name(1), path / shard_name(1))


def of_another_day(path: Path) -> None:
    """The journal let go of what this file does not have."""
    shutil.copy(path / shard_name(1), path / "old")

    async def story(found: FoundShards) -> None:
        await write(found, 1, 20)

    on(path, story)
    (path / "old").rename(path / shard_name(1))


@pytest.mark.parametrize("mistake", [swapped, of_the_future, of_another_directory])
def test_a_mistake_is_no_damage(path: Path, mistake: Callable[[Path], None]) -> None:
    mistake(path)
    with pytest.raises(StartError) as refused:
        on(path, keys_of_nobody)
    assert isinstance(refused.value.__cause__, UnfitError)


def test_a_file_that_is_older_than_the_journal_waits_alone(path: Path) -> None:
    """It may as well have lost the end of its WAL."""
    of_another_day(path)

    async def story(found: FoundShards) -> None:
        assert list(found.damaged) == [1]
        assert "lost its end" in str(found.damaged[1])

    on(path, story)


def test_a_key_that_is_missing_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "data"
    DataDirectory.open(path, SHARDS).close()

    async def run(keyring: Keyring | None, story: Callable[[FoundShards], Awaitable[None]]) -> None:
        with DataDirectory.open(path) as directory:
            async with open_shards(directory, "full", keyring) as found:
                await story(found)

    async def story(found: FoundShards) -> None:
        await write(found, 1, 1)

    trio.run(run, Keyring([bytes(32)]), story)
    with pytest.raises(StartError, match="no key is configured"):
        trio.run(run, None, keys_of_nobody)


# ------------------------------------------------------------------------------------------------------- the journal


async def one_large_batch_each(found: FoundShards) -> None:
    for shard in range(SHARDS):
        await write(found, shard, 20 + shard, size=6_000)


def test_a_journal_of_which_nobody_lacks_anything_is_made_anew(path: Path) -> None:
    async def story(found: FoundShards) -> None:
        await one_large_batch_each(found)
        for shard in range(SHARDS):
            await write_behind(found, shard)

    left = killed_after(path, story)
    flip(left / JOURNAL, page_with(left / JOURNAL, bytes([21]) * 2_000) + 100)
    assert not check_directory(left).sound

    async def served(found: FoundShards) -> None:
        assert not found.damaged
        assert [state.alone for state in found.opened.values()] == [None] * SHARDS
        for shard in range(SHARDS):
            assert await keys(found, shard) == {shard + 1, 20 + shard}
            await write(found, shard, 30 + shard)

    on(left, served)
    on(left, lambda found: has_all(found, (1, 20, 30)))
    assert "journal" not in str(check_directory(left).findings)


async def has_all(found: FoundShards, firsts: tuple[int, ...]) -> None:
    assert not found.damaged
    for shard in range(SHARDS):
        assert await keys(found, shard) == {first + shard for first in firsts}


def test_who_lacks_something_of_a_damaged_journal_waits_and_the_others_go_on_alone(path: Path) -> None:
    left = killed_after(path, one_large_batch_each)
    at = page_with(left / JOURNAL, bytes([21]) * 2_000) + 100
    flip(left / JOURNAL, at)

    async def served(found: FoundShards) -> None:
        assert list(found.damaged) == [1]
        assert JOURNAL in str(found.damaged[1])
        for shard in OTHER_SHARDS[1]:
            assert JOURNAL in str(found.opened[shard].alone)
            before = {shard + 1, 20 + shard} | {number + shard for number in alone}
            assert await keys(found, shard) == before
            await write(found, shard, 30 + len(alone) * 10 + shard)
        alone.append(30 + len(alone) * 10)

    alone: list[int] = []
    for _ in range(2):
        # What is written alone is there at the next start, however often.
        on(left, served)
    flip(left / JOURNAL, at)

    async def put_right(found: FoundShards) -> None:
        assert not found.damaged
        assert await keys(found, 1) == {2, 21}
        for shard in OTHER_SHARDS[1]:
            assert await keys(found, shard) == {shard + 1, 20 + shard, 30 + shard, 40 + shard}
            await write(found, shard, 50 + shard)

    on(left, put_right)
    assert "journal" not in str(check_directory(left).findings)


def test_a_journal_that_is_put_right_is_taken_without_a_restart(path: Path) -> None:
    left = killed_after(path, one_large_batch_each)
    at = page_with(left / JOURNAL, bytes([21]) * 2_000) + 100
    flip(left / JOURNAL, at)

    async def served(found: FoundShards) -> None:
        await write(found, 0, 30)
        flip(left / JOURNAL, at)
        await found.engines[1].reopen()
        assert await keys(found, 1) == {2, 21}
        await write(found, 0, 40)
        assert (await found.engines[0].reopen()).alone is None
        await write(found, 0, 50)
        assert await keys(found, 0) == {1, 20, 30, 40, 50}

    on(left, served)


def test_a_journal_page_that_may_have_been_anybodys_proves_nothing(path: Path) -> None:
    """It says which batches there are: a shard that seems to have none may have had one on it."""

    async def story(found: FoundShards) -> None:
        await write(found, 0, 20)

    left = killed_after(path, story)
    connection = apsw.Connection(str(left / JOURNAL))
    root = int(connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'batches'").get)
    connection.close()
    flip(left / JOURNAL, (root - 1) * PAGE_BYTES + 2_000)
    with pytest.raises(StartError, match=JOURNAL):
        on(left, keys_of_nobody)


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_several_journals_one_costs_its_own_worker_at_most(path: Path, damage: Callable[[Path], None]) -> None:
    async def story(found: FoundShards) -> None:
        for shard in range(SHARDS):
            await write(found, shard, 20 + shard)

    left = killed_after(path, story, workers=2)
    file = left / journal_name(1, 2)
    if damage is flipped:
        flip(file, PAGE_BYTES - 20)
    else:
        damage(file)

    async def served(found: FoundShards) -> None:
        assert list(found.damaged) == [1]
        assert file.name in str(found.damaged[1])
        assert await keys(found, 0) == {1, 20}
        assert await keys(found, 2) == {3, 22}

    on(left, served, workers=2)
    with pytest.raises(StartError, match="start with workers = 2 meanwhile"):
        on(left, keys_of_nobody)
