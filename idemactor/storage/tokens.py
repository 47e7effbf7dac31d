"""Beyond which token a copy of a shard goes on, so that no token is granted twice for a key.

What the original granted after it was copied is not in the copy. So before a copy is served, its last token becomes at
least ``token_at`` of the moment. That is a law of the time alone, which holds for any number of copies of copies, of
any age and in any order: at any moment, whoever served the shard before has granted

- either fewer than 2^52 tokens, if it was never a copy, since it counted from 1; or
- from ``token_at`` of some earlier moment on at most one a microsecond: a shard grants some hundred thousand a second,
  and making new files of old ones uses up a number for each entry, which takes longer than that.

Both lie below ``token_at`` of the moment, as long as this machine's clock does not lag behind the lost one's by more
than the time between. Places in line (``Delivery.seq``) are microseconds since the epoch and lie below 2^52, too: a
number is never both.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import apsw

from idemactor.core.limits import TOKEN_MAX
from idemactor.errors import StorageError
from idemactor.storage.checksums import checked_vfs
from idemactor.storage.sqlite_create import check_version

TOKENS_BEFORE_COPIES: Final = 2**52
"""Where the tokens of copies begin."""
BEGAN_MS: Final = 1_577_836_800_000
"""2020-01-01T00:00:00Z: no copy is older. They are used up 142 years later."""
TOKENS_PER_MS: Final = 1_000
"""More than any shard grants."""

_LEAP: Final = "UPDATE meta SET last_token = max(last_token, ?), latest_ms = max(latest_ms, ?)"


def token_at(now_ms: int) -> int:
    """The token beyond which a copy goes on that is served from ``now_ms`` on (milliseconds since the epoch).

    Raises:
        StorageError: The clock is before all copies, or beyond the last token.
    """
    token = TOKENS_BEFORE_COPIES + (now_ms - BEGAN_MS) * TOKENS_PER_MS
    if not TOKENS_BEFORE_COPIES <= token <= TOKEN_MAX:
        raise StorageError("the clock of this machine is wrong, and tokens depend on it; set it")
    return token


def leap(files: Iterable[Path], token: int, latest_ms: int = 0) -> None:
    """Let shards' files that nobody has open go on behind ``token`` and not before ``latest_ms``. May be repeated.

    Raises:
        StorageError: One of them is not ours.
        apsw.Error: One of them cannot be written.
    """
    for path in files:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checked_vfs())
        try:
            check_version(connection, str(path))
            connection.pragma("synchronous", "FULL")
            connection.execute(_LEAP, (token, latest_ms))
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            connection.close()
