"""A byte of a file changes on its own: it is found by the check, and where it is read; no answer is ever wrong.

``FLIP_ROUNDS`` is how many bytes are changed, spread evenly over all files, and how many ends of WALs are damaged, cut
or gone (60); ``make faults`` tries more.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from idemactor.core.commands import Get
from idemactor.core.keys import identity_hash, shard_of
from idemactor.core.replies import Unavailable
from idemactor.errors import StorageError
from idemactor.storage.check import check_directory
from idemactor.storage.checksums import checked_vfs
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.layout import shard_name
from idemactor.storage.sqlite_create import PAGE_BYTES
from idemactor.storage.sqlite_wal import FRAME_BYTES
from idemactor.storage.wal_frames import HEADER_BYTES, frames_in
from idemactor.storage.watermark import SUFFIX as SYNCED_SUFFIX
from tests.faults.disk import FaultyDisk
from tests.faults.life import BACK_WITHIN_S, EVICT_AFTER_MS, SHARDS, Broken, Caller, Life, Standing, work
from tests.shard.harness import identity

ROUNDS: Final = int(os.environ.get("FLIP_ROUNDS", "60"))
LOGGED: Final = 12
SEED: Final = int(os.environ.get("FAULT_SEED", "1"))


def life_in(path: Path) -> Life:
    """On the disk of the system, with its checksums."""
    return Life(path, FaultyDisk(Random(SEED)), checked_vfs())


def on_mock_time(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    trio.run(story, clock=MockClock(autojump_threshold=0))


@pytest.fixture(name="killed", scope="module")
def _killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, set[Standing]]]:
    """What a server leaves that is killed, with something in every file; and what its caller knows."""
    path = tmp_path_factory.mktemp("killed")
    life = life_in(path / "data")
    left = path / "left"

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            await work(caller)
            # Forgetting emptied the logs.
            for number in range(LOGGED):
                await caller.commit(f"logged-{number}", await caller.reserve(f"logged-{number}"))
            await caller.reserve("last")
            shutil.copytree(life.path, left)

    on_mock_time(story)
    life.disk.close()
    return left, {key: set(allowed) for key, allowed in life.allowed.items()}


def change(file: Path, position: int, rng: Random) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _replaced_by_wal(file: Path) -> set[int]:
    return {frame.page for frame in frames_in(file.with_name(file.name + "-wal"))}


def _counts_up_to(wal: Path) -> int:
    """Where what counts of a WAL ends, and what an earlier run left begins."""
    return HEADER_BYTES + len(frames_in(wal)) * FRAME_BYTES


async def _start_and_look(life: Life, *, must_answer: bool) -> str:
    """Start and ask for everything; what became of it."""
    try:
        async with life.running() as caller:
            await caller.look(must_answer=must_answer)
            return "served in part" if caller.refused else "served"
    except StorageError:
        return "refused to start"


def _found_and_became(directory: Path, allowed: dict[str, set[Standing]]) -> tuple[bool, str]:
    """Whether the check finds it, and what becomes of a start: what is not found must cost nothing at all."""
    found = not check_directory(directory).sound
    life = life_in(directory)
    life.allowed = {key: set(each) for key, each in allowed.items()}
    outcome = ""

    async def story() -> None:
        nonlocal outcome
        outcome = await _start_and_look(life, must_answer=not found)

    try:
        on_mock_time(story)
    except BaseException as error:
        error.add_note(f"FAULT_SEED={SEED}; the check found it: {found}")
        raise
    finally:
        life.disk.close()
    assert found or outcome == "served"
    return found, outcome


def test_a_changed_byte_is_found_by_the_check_and_is_never_an_answer(
    killed: tuple[Path, dict[str, set[Standing]]], tmp_path: Path
) -> None:
    left, allowed = killed
    assert check_directory(left).findings == ()
    files = [file for file in sorted(left.glob("*.db*")) if not file.name.endswith("-shm") and file.stat().st_size]
    assert {file.suffix for file in files} == {".db", ".db-wal", ".db-synced"}
    sizes = [file.stat().st_size for file in files]
    rng = Random(SEED)
    became: Counter[tuple[str, str]] = Counter()
    for number in range(ROUNDS):
        # As many of each file, whatever their sizes.
        file, size = files[number % len(files)], sizes[number % len(files)]
        position = rng.randrange(size)
        directory = shutil.copytree(left, tmp_path / str(number))
        change(directory / file.name, position, rng)
        try:
            found, outcome = _found_and_became(directory, allowed)
        except BaseException as error:
            error.add_note(f"byte {position} of {file.name}")
            raise
        kind = {".db": "file", ".db-wal": "WAL", ".db-synced": "number beside the journal"}[file.suffix]
        if kind == "WAL" and position >= _counts_up_to(file):
            kind = "WAL, of an earlier run"
        if kind == "file" and not found and position // PAGE_BYTES + 1 in _replaced_by_wal(file):
            kind = "page that the WAL replaces"
        became[kind, f"{'found by the check' if found else 'not found'}, {outcome}"] += 1
        if kind == "file" or (kind == "WAL" and file.name.startswith("journal")):
            assert found, f"byte {position} of {file.name}"
        if file.name.startswith("shard"):
            assert outcome != "refused to start", f"byte {position} of {file.name}"
        shutil.rmtree(directory)
    print(dict(became))
    assert sum(became.values()) == ROUNDS
    assert any(kind == "WAL" and what.startswith("found") for kind, what in became)


def change_end(wal: Path, rng: Random) -> None:
    """One bit of the last transaction."""
    frames = frames_in(wal)
    commits = [number for number, frame in enumerate(frames) if frame.commit]
    first = commits[-2] + 1 if len(commits) > 1 else 0
    change(wal, rng.randrange(HEADER_BYTES + first * FRAME_BYTES, _counts_up_to(wal)), rng)


def cut(wal: Path, rng: Random) -> None:
    os.truncate(wal, rng.randrange(_counts_up_to(wal)))


def cut_last(wal: Path, rng: Random) -> None:
    os.truncate(wal, _counts_up_to(wal) - rng.randrange(1, FRAME_BYTES))


def empty(wal: Path, _rng: Random) -> None:
    os.truncate(wal, 0)


def delete(wal: Path, _rng: Random) -> None:
    wal.unlink()


def test_an_end_of_a_wal_that_is_damaged_cut_or_gone_is_found_or_costs_nothing(
    killed: tuple[Path, dict[str, set[Standing]]], tmp_path: Path
) -> None:
    left, allowed = killed
    wals = [wal for wal in sorted(left.glob("*.db-wal")) if wal.stat().st_size]
    assert {wal.name for wal in wals} == {f"{name}-wal" for name in (JOURNAL_NAME, shard_name(0), shard_name(1))}
    ways = [change_end, cut, cut_last, empty, delete]
    rng = Random(SEED)
    became: Counter[tuple[str, str]] = Counter()
    for number in range(ROUNDS):
        wal, way = wals[number % len(wals)], ways[number // len(wals) % len(ways)]
        directory = shutil.copytree(left, tmp_path / str(number))
        way(directory / wal.name, rng)
        try:
            found, outcome = _found_and_became(directory, allowed)
        except BaseException as error:
            error.add_note(f"round {number}: {way.__name__} of {wal.name}")
            raise
        kind = "journal" if wal.name.startswith("journal") else "file"
        became[f"{way.__name__} of a {kind}", f"{'found by the check' if found else 'not found'}, {outcome}"] += 1
        if kind == "journal":
            assert (found, outcome) == (True, "refused to start"), f"{way.__name__} in round {number}"
        shutil.rmtree(directory)
    print(dict(became))


def test_without_the_number_beside_the_journal_its_end_is_lost(
    killed: tuple[Path, dict[str, set[Standing]]], tmp_path: Path
) -> None:
    """So that it is known that the tests above would fail without it."""
    left, allowed = killed
    directory = shutil.copytree(left, tmp_path / "data")
    (directory / (JOURNAL_NAME + SYNCED_SUFFIX)).unlink()
    cut_last(directory / f"{JOURNAL_NAME}-wal", Random(SEED))
    with pytest.RaisesGroup(pytest.RaisesExc(Broken, match="last")):
        _found_and_became(directory, allowed)


def test_a_byte_that_changes_under_a_running_server_costs_its_shard_until_it_is_right_again(tmp_path: Path) -> None:
    life = life_in(tmp_path / "data")

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            for number in range(40):
                await caller.commit(f"key-{number}", await caller.reserve(f"key-{number}"), bytes(3_000))
            # Nobody needs the shards: what they know is in their files alone.
            await trio.sleep(2 * EVICT_AFTER_MS / 1_000)
            file = life.path / shard_name(0)
            before = file.read_bytes()
            change(file, len(before) - 2_000, Random(SEED))
            assert await _answers(caller) == {0: False, 1: True}
            assert life.notes.quarantines
            assert all("shard 0" in said and "is damaged" in said and "backup" in said for said in life.notes.said)
            file.write_bytes(before)
            await trio.sleep(BACK_WITHIN_S)
            assert await _answers(caller) == {0: True, 1: True}
            await caller.look(must_answer=True)

    on_mock_time(story)
    life.disk.close()


async def _answers(caller: Caller) -> dict[int, bool]:
    """By shard, whether every key of it is answered for, and rightly."""
    answers = dict.fromkeys(range(SHARDS), True)
    for key in caller.allowed:
        if isinstance(await caller.ask(Get(identity(key))), Unavailable):
            answers[shard_of(identity_hash(identity(key)), SHARDS)] = False
    await caller.look()
    return answers


def test_without_checksums_a_changed_byte_becomes_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is known that the tests above would fail without them."""
    monkeypatch.setattr("idemactor.storage.sqlite_create.make_room", lambda _connection: None)
    life = life_in(tmp_path / "data")

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            await caller.commit("key", await caller.reserve("key"), b"the outcome of it" * 20)
            await trio.sleep(2 * EVICT_AFTER_MS / 1_000)
            for number in range(SHARDS):
                file = life.path / shard_name(number)
                file.write_bytes(file.read_bytes().replace(b"outcome of", b"outcome 0f"))
            await caller.look()

    with pytest.RaisesGroup(Broken):
        on_mock_time(story)
    life.disk.close()
