"""``idemactor`` with a death wish: it kills itself right before, or right after, a write that it was told of.

The file that ``DIE_FILE`` names says which: ``before`` or ``after``; without that file it lives on. "After" is the
moment when a batch is on disk and none of its answers has left.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

from idemactor.cli.main import main
from idemactor.shard.actor import Shard
from idemactor.storage.base import Batch, CommitResult

DIE_FILE: Final = "DIE_FILE"


class DeadlyEngine:
    """Any engine; the process does not survive a commit that it was told not to."""

    def __init__(self, engine: Any, order: Path) -> None:
        self._engine = engine
        self._order = order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def commit(self, batch: Batch) -> CommitResult:
        wish = self._order.read_text() if self._order.exists() else ""
        if wish == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result: CommitResult = await self._engine.commit(batch)
        if wish == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def _arm() -> None:
    order = Path(os.environ[DIE_FILE])
    make = Shard.__init__

    def make_deadly(self: Shard, number: int, engine: Any, *rest: Any, **named: Any) -> None:
        make(self, number, DeadlyEngine(engine, order), *rest, **named)

    Shard.__init__ = make_deadly  # type: ignore[method-assign]


if __name__ == "__main__":
    _arm()
    main(prog_name="idemactor")
