"""A file is deleted, replaced or cut under a running server: its shard says so within seconds, and how to get out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import trio

from idemactor.core.commands import Get
from idemactor.core.keys import identity_hash, shard_of
from idemactor.core.replies import Unavailable
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.layout import shard_name
from idemactor.storage.sqlite import LOOK_S
from tests.faults.life import SHARDS, Caller
from tests.faults.test_changed_bytes import life_in, on_mock_time
from tests.shard.harness import identity, reserve

NOTICED_WITHIN: Final = 3
"""Commands of a shard, a second apart, of which the last is refused at the latest."""


def delete(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    """By a copy, as a restore of a file under a running server does."""
    copy = file.with_name("copy")
    shutil.copy(file, copy)
    copy.rename(file)


def delete_wal(file: Path) -> None:
    file.with_name(file.name + "-wal").unlink()


def move(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("happens", [delete, replace, delete_wal, move])
@pytest.mark.parametrize("name", [shard_name(0), JOURNAL_NAME])
def test_a_file_that_is_gone_is_noticed_and_said_with_the_way_out(
    tmp_path: Path, happens: Callable[[Path], None], name: str, reads: bool
) -> None:
    life = life_in(tmp_path / "data")

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            for number in range(20):
                await caller.reserve(f"key-{number}")
            happens(life.path / name)
            refused = {shard: await _refused(caller, shard, reads) for shard in range(SHARDS)}
            if name == JOURNAL_NAME:
                # Who only reads needs no journal: what is in memory and in the files is whole.
                assert refused == dict.fromkeys(range(SHARDS), not reads)
            else:
                assert refused == {0: True, 1: False}
            if any(refused.values()):
                assert "backup" in " ".join(life.notes.said) or "stop the server" in " ".join(life.notes.said)
            await caller.look()

    on_mock_time(story)
    life.disk.close()


async def _refused(caller: Caller, shard: int, reads: bool) -> bool:
    """Whether the shard refuses soon, and goes on refusing."""
    keys = [f"probe-{n}" for n in range(100) if shard_of(identity_hash(identity(f"probe-{n}")), SHARDS) == shard]
    answers = []
    for key in keys[: NOTICED_WITHIN + 4]:
        await trio.sleep(LOOK_S)
        answers.append(await caller.ask(Get(identity(key)) if reads else reserve(key)))
    late = [isinstance(answer, Unavailable) for answer in answers[NOTICED_WITHIN:]]
    assert len(set(late)) == 1
    return late[0]
