"""Keys and identities: what a key may be, whose it is, and which shard holds it (contract, 2 and 12)."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from idemactor.core.limits import KEY_CHARS_MAX
from idemactor.errors import IdemactorError

_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""C0, DEL, C1 and lone surrogates: nothing that a log, a header or UTF-8 cannot carry."""

HASHES_KEPT: Final = 16_384
"""A command asks for its key's hash when it is routed, looked up, journalled and written behind: within this many keys
it is computed once."""

_NAMESPACE: Final = re.compile("[a-z][a-z0-9_-]{0,62}")


class InvalidKey(IdemactorError, ValueError):
    """A key that no record can have; the message says why and never quotes the key."""


class InvalidNamespace(IdemactorError, ValueError):
    """A name that no namespace can have."""


class Identity(NamedTuple):
    """Whose key this is. The three texts are compared exactly and never joined by a separator."""

    tenant: str
    namespace: str
    key: str


def check_key(text: str) -> None:
    """Accept ``text`` as a key, wherever it came from.

    Raises:
        InvalidKey: It is empty, longer than 256 characters (code points), all white space, or holds a control
            character or a lone surrogate.
    """
    if not text:
        raise InvalidKey("a key has at least one character")
    if len(text) > KEY_CHARS_MAX:
        raise InvalidKey(f"a key has at most {KEY_CHARS_MAX} characters")
    # Printable ASCII, the usual key, needs no search.
    if not (text.isascii() and text.isprintable()) and _FORBIDDEN.search(text) is not None:
        raise InvalidKey("a key holds no control character and no lone surrogate")
    if text.isspace():
        raise InvalidKey("a key is not all white space")


def check_namespace(name: str) -> None:
    """Accept ``name`` as a namespace's name.

    Raises:
        InvalidNamespace: It does not match ``[a-z][a-z0-9_-]{0,62}``.
    """
    if _NAMESPACE.fullmatch(name) is None:
        raise InvalidNamespace("a namespace's name matches [a-z][a-z0-9_-]{0,62}")


@lru_cache(HASHES_KEPT)
def identity_hash(identity: Identity) -> int:
    """A signed 64-bit integer for ``identity``, the same in every process and release.

    It is stored, and it picks the shard: changing it orphans every record on disk. Each part is preceded by
    its length, so that no two identities feed the same bytes.

    Raises:
        UnicodeEncodeError: A part holds a lone surrogate (``check_key`` refuses those first).
    """
    tenant, namespace, key = identity
    parts = f"{len(tenant)}:{tenant}{len(namespace)}:{namespace}{len(key)}:{key}"
    return int.from_bytes(blake2b(parts.encode(), digest_size=8).digest(), "big", signed=True)


def shard_of(hashed: int, shards: int) -> int:
    """The shard, from 0 to ``shards - 1``, that holds the identity with this hash."""
    return hashed % shards


def worker_of(shard: int, workers: int) -> int:
    """The worker, from 0 to ``workers - 1``, that owns a shard where several processes serve one directory."""
    return shard % workers
