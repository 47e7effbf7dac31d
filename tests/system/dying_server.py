"""``idemactor`` with a death wish: it kills itself right before, or right after, a write that it was told of.

The file that ``DIE_FILE`` names says which: ``before`` or ``after``; without that file it lives on. "After" is the
moment when a batch is on disk and none of its answers has left.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from idemactor.cli.main import main
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.sqlite import SqliteEngine

DIE_FILE: Final = "DIE_FILE"


def _arm() -> None:
    order = Path(os.environ[DIE_FILE])
    commit = SqliteEngine.commit

    async def deadly(self: SqliteEngine, batch: Batch) -> CommitResult:
        wish = order.read_text() if order.exists() else ""
        if wish == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await commit(self, batch)
        if wish == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    SqliteEngine.commit = deadly  # type: ignore[method-assign]


if __name__ == "__main__":
    _arm()
    main(prog_name="idemactor")
