"""What was forgotten is in none of the files any more, neither in free pages nor in a log of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import apsw
import trio

from idemactor.storage.checksums import checked_vfs
from idemactor.storage.directory import DataDirectory
from idemactor.storage.layout import shard_name
from tests.faults.life import EVICT_AFTER_MS, SHARDS
from tests.faults.test_changed_bytes import life_in, on_mock_time

KEYS: Final = 60


def marked(number: int, rng: Random) -> bytes:
    """An outcome in which no piece of 24 bytes is without its mark."""
    return f"<secret-{number:03d}>".encode() * rng.choice((1, 4, 60, 900))


def left_in(path: Path, number: int) -> list[str]:
    return sorted(file.name for file in path.iterdir() if f"<secret-{number:03d}>".encode() in file.read_bytes())


def test_what_was_forgotten_is_in_no_file_once_the_shard_has_rested(tmp_path: Path) -> None:
    life = life_in(tmp_path / "data")
    rng = Random(1)

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            for number in range(KEYS):
                key = f"key-{number}"
                await caller.commit(key, await caller.reserve(key), marked(number, rng))
                if number == KEYS // 2:
                    # So that there are some in the files, and some in the journal alone.
                    await trio.sleep(2 * EVICT_AFTER_MS / 1_000)
            there = [number for number in range(KEYS) if left_in(life.path, number)]
            assert there == list(range(KEYS))
            gone = rng.sample(range(KEYS), KEYS // 2)
            for number in gone:
                await caller.forget(f"key-{number}")
                # The work that no answer waits for.
                await trio.sleep(0.01)
                assert left_in(life.path, number) == []
            await caller.look(must_answer=True)
            assert all(left_in(life.path, number) for number in set(range(KEYS)) - set(gone))

    on_mock_time(story)
    life.disk.close()


def test_while_another_program_reads_an_older_state_it_waits_and_is_done_afterwards(tmp_path: Path) -> None:
    life = life_in(tmp_path / "data")

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            await caller.commit("key", await caller.reserve("key"), marked(1, Random(1)))
            readers = [apsw.Connection(str(life.path / shard_name(n)), vfs=checked_vfs()) for n in range(SHARDS)]
            for reader in readers:
                reader.execute("BEGIN; SELECT count(*) FROM records").fetchall()
            await caller.forget("key")
            await trio.sleep(0.01)
            await caller.look(must_answer=True)
            for reader in readers:
                reader.close()
            # Whatever the shard does next.
            for number in range(8):
                await caller.reserve(f"other-{number}")
            await trio.sleep(0.01)
            assert left_in(life.path, 1) == []

    on_mock_time(story)
    life.disk.close()
