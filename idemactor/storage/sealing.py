"""Encryption at rest: what callers stored - outcomes, intents, events - as ciphertext in every file.

AES-256-GCM of the ``cryptography`` package, a random nonce each (NIST SP 800-38D, section 8.2.2: at most 2**32 of them
for a key). What a ciphertext belongs to is authenticated with it, so that one cannot be put in the place of another:
its kind, its id, and its key. The first key encrypts, all decrypt; each ciphertext names its key by a digest.

Keys of records, namespaces, states, times, tokens, fingerprints, holders and reasons stay as they are: the shards look
things up and decide by them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from idemactor.errors import OutOfReach, StartError, StorageError

KEY_BYTES: Final = 32
SEALED: Final = '"sealed"'
"""Stands in the column ``headers`` of what is sealed: valid JSON, and never the array that is there otherwise."""

_MARK: Final = b"\xc1\x01"
"""Begins what is sealed: a byte that MessagePack never uses, and the version of what follows."""
_KEY_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_HEAD_BYTES: Final = len(_MARK) + _KEY_ID_BYTES + _NONCE_BYTES
_WAY_OUT: Final = "give it the key that encrypted this (server.encryption_key_file or server.encryption_key_env)"

About = tuple[str | int, ...]
"""What a ciphertext belongs to."""


class Keyring:
    """Keys that were checked.

    Args:
        keys: Of ``KEY_BYTES`` bytes each; the first one encrypts. At least one.

    Raises:
        StartError: The ``cryptography`` package is not there.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise StartError("encryption needs the package cryptography: pip install 'idemactor[encryption]'") from None
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}
        self._first = _key_id(keys[0])

    def seal(self, plain: bytes, about: About) -> bytes:
        """The ciphertext of ``plain``, which opens only for the same ``about``."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._ciphers[self._first].encrypt(nonce, plain, _packed(about))
        return b"".join((_MARK, self._first, nonce, sealed))

    def open(self, sealed: bytes, about: About) -> bytes:
        """The plain text of what ``seal`` returned.

        Raises:
            OutOfReach: None of the keys encrypted it.
            StorageError: It was changed, or belongs to something else.
        """
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(_key_id_in(sealed))
        if cipher is None:
            raise OutOfReach(f"what is stored was encrypted with another key; {_WAY_OUT}")
        try:
            plain: bytes = cipher.decrypt(
                sealed[_HEAD_BYTES - _NONCE_BYTES : _HEAD_BYTES], sealed[_HEAD_BYTES:], _packed(about)
            )
        except InvalidTag:
            raise StorageError("what is stored is not what was encrypted: it was changed, or moved") from None
        return plain

    def is_current(self, sealed: bytes) -> bool:
        """Whether the key that encrypts encrypted this."""
        return _key_id_in(sealed) == self._first

    def knows(self, sealed: bytes) -> bool:
        """Whether one of the keys encrypted this."""
        return _key_id_in(sealed) in self._ciphers


def is_sealed(body: bytes) -> bool:
    """Whether bytes of the journal are sealed."""
    return body.startswith(_MARK)


def unseal(keys: Keyring | None, sealed: bytes, about: About) -> bytes:
    """The plain text of what is sealed.

    Raises:
        OutOfReach: There are no keys, or none of them encrypted it.
        StorageError: See ``Keyring.open``.
    """
    if keys is None:
        raise OutOfReach(f"what is stored is encrypted, and no key is configured; {_WAY_OUT}")
    return keys.open(sealed, about)


def check_keys(keys: Keyring | None, headers: str, body: bytes) -> None:
    """Refuse to go on without the key of something that is stored.

    Raises:
        OutOfReach: It is sealed, and its key is not there.
    """
    if headers == SEALED and (keys is None or not keys.knows(body)):
        which = "no key is configured" if keys is None else "its key is not among those that are configured"
        raise OutOfReach(f"it holds what is encrypted, and {which}; {_WAY_OUT}")


def hide(keys: Keyring, parts: Sequence[str | bytes], about: About) -> bytes:
    """What stands in the column ``body``: texts and body of a row, sealed."""
    return keys.seal(bytes(msgpack.packb(list(parts), use_bin_type=True)), about)


def reveal(keys: Keyring | None, body: bytes, about: About) -> list[Any]:
    """The parts that ``hide`` was given.

    Raises:
        StorageError: See ``unseal``.
    """
    return list(msgpack.unpackb(unseal(keys, body, about), raw=False))


def _packed(about: About) -> bytes:
    return bytes(msgpack.packb(about))


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"idemactor key id\0" + key).digest()[:_KEY_ID_BYTES]


def _key_id_in(sealed: bytes) -> bytes:
    return sealed[len(_MARK) : len(_MARK) + _KEY_ID_BYTES]
