"""``idemactor`` on a bad disk: a write takes up to ``SLOW_MS`` more before and after it, now and then ten times that.

With ``FORGETS`` one write in five is reported as made and never is.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

import trio

from idemactor.cli.main import main
from idemactor.shard.actor import Shard
from idemactor.storage.base import Batch, CommitResult

SLOW_MS: Final = "SLOW_MS"
FORGETS: Final = "FORGETS"
_CHANCE: Final = random.SystemRandom()


class SlowEngine:
    """Any engine, slowly: a kill may well come between a write and its answers."""

    def __init__(self, engine: Any, slow_s: float) -> None:
        self._engine = engine
        self._slow_s = slow_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def commit(self, batch: Batch) -> CommitResult:
        await self._take_time()
        if FORGETS in os.environ and _CHANCE.random() < 0.2:
            return CommitResult.OK
        result: CommitResult = await self._engine.commit(batch)
        await self._take_time()
        return result

    async def _take_time(self) -> None:
        await trio.sleep(_CHANCE.random() * self._slow_s * (10 if _CHANCE.random() < 0.03 else 1))


def _slow_down() -> None:
    slow_s = int(os.environ[SLOW_MS]) / 1_000
    make = Shard.__init__

    def make_slow(self: Shard, number: int, engine: Any, *rest: Any, **named: Any) -> None:
        make(self, number, SlowEngine(engine, slow_s), *rest, **named)

    Shard.__init__ = make_slow  # type: ignore[method-assign]


if __name__ == "__main__":
    _slow_down()
    main(prog_name="idemactor")
