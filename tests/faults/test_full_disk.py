"""A disk without room: whoever writes is refused, whoever reads is answered, and it mends itself once there is room."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from idemactor.core.commands import Get
from idemactor.core.replies import Found, Unavailable
from idemactor.storage.directory import DataDirectory
from tests.faults.disk import FaultyDisk
from tests.faults.life import EVICT_AFTER_MS, SHARDS, Life
from tests.shard.harness import identity, reserve


def on_mock_time(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    trio.run(story, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_on_a_full_disk_readers_are_answered_and_writers_refused_until_there_is_room(
    tmp_path: Path, seed: int, evicted: bool
) -> None:
    life = Life(tmp_path / "data", FaultyDisk(Random(seed)))

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            for number in range(4 + seed):
                await caller.commit(f"done-{number}", await caller.reserve(f"done-{number}"), bytes(700 * number))
                await caller.reserve(f"held-{number}")
            if evicted:
                await trio.sleep(2 * EVICT_AFTER_MS / 1_000)
            life.disk.full = True
            refused = 0
            for number in range(40):
                answer = await caller.ask(reserve(f"more-{number}-{'x' * 200}"))
                refused += isinstance(answer, Unavailable)
                for key in caller.allowed:
                    assert isinstance(await caller.ask(Get(identity(key))), Found), (number, key, life.notes.said)
            assert refused, "the disk was not full"
            await caller.look(must_answer=True)
            life.disk.full = False
            # At once: nothing has to wait for a back-off.
            for number in range(8):
                assert await caller.reserve(f"after-{number}") is not None
            await caller.look(must_answer=True)
        await life.start_again()

    on_mock_time(story)
    life.disk.close()
