"""What the supervisor tells all its workers, those that are yet to come included: the tokens there are now.

It stands in memory that they share, because they were copied from one process. A worker looks there when it starts and
whenever it is told to; so one that died and came back never goes by tokens that were taken away meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from idemactor.config import TokenEntry
from idemactor.server.auth import Role

_NAME: Final = "idemactor-tokens"
_DIGEST_BYTES: Final = 32


class Bulletin:
    """The latest tokens, for all processes that were forked after this was made."""

    def __init__(self) -> None:
        self._fd = os.memfd_create(_NAME)

    def post(self, tokens: Sequence[TokenEntry]) -> None:
        """Replace what stands there."""
        text = json.dumps([_members(token) for token in tokens]).encode()
        os.pwrite(self._fd, sha256(text).digest() + text, 0)
        os.ftruncate(self._fd, _DIGEST_BYTES + len(text))

    def read(self) -> tuple[TokenEntry, ...] | None:
        """What stands there; None: nothing yet, or it is just being replaced, which will be told."""
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        digest, text = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if sha256(text).digest() != digest:
            return None
        return tuple(_token(members) for members in json.loads(text))


def _members(token: TokenEntry) -> list[object]:
    return [token.name, token.sha256.hex(), token.tenant, list(token.namespaces), token.role.value]


def _token(members: list[object]) -> TokenEntry:
    name, digest, tenant, namespaces, role = members
    assert isinstance(namespaces, list)
    return TokenEntry(str(name), bytes.fromhex(str(digest)), str(tenant), tuple(namespaces), Role(str(role)))
