"""What is said to whoever has to put a data directory right."""

from __future__ import annotations

from typing import Final

RESTORE: Final = "`idemactor restore --replace BACKUP DIR` restores the whole directory"
NOT_ALONE: Final = (
    f"a backup's copy of that file alone does not fit the others: {RESTORE}, and"
    " docs/operations.md says how to bring back one shard alone"
)
"""Of a shard's file or a journal. One that is put beside files of another moment is refused at the next start."""
