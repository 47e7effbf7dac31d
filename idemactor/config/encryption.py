"""The keys that encrypt what callers store: in a file or in the environment, never in the configuration itself."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from idemactor.config.kinds import Kind, Lexis
from idemactor.config.section import Section

KEY_BYTES: Final = 32
KEYS_MAX: Final = 16
FILE_BYTES_MAX: Final = 16_384

_KEYS: Final = (
    f"{KEY_BYTES} random bytes each in Base64 (openssl rand -base64 {KEY_BYTES}), the one that encrypts first, then"
    " those that still decrypt"
)


def encryption_keys(section: Section, environment: Mapping[str, str]) -> tuple[bytes, ...]:
    """The keys of ``encryption_key_file`` or ``encryption_key_env``; none where neither is there."""
    from_file = section.read("encryption_key_file", _file(), ())
    from_environment = section.read("encryption_key_env", _variable(environment), ())
    if section.has("encryption_key_file") and section.has("encryption_key_env"):
        section.report("give encryption_key_file or encryption_key_env, not both", "encryption_key_env")
    return from_file or from_environment


def _file() -> Kind[tuple[bytes, ...]]:
    def read(value: object) -> tuple[bytes, ...]:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError
        try:
            with Path(value).open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ValueError(f"it cannot be read: {error.strerror}") from None
        return parse_keys(content.decode("ascii", "replace"))

    return Kind(f"the path of a file of keys: {_KEYS}", read, Lexis.TEXT, secret=True)


def _variable(environment: Mapping[str, str]) -> Kind[tuple[bytes, ...]]:
    def read(value: object) -> tuple[bytes, ...]:
        if not isinstance(value, str) or not value:
            raise ValueError
        if value not in environment:
            raise ValueError("there is no such variable")
        return parse_keys(environment[value])

    return Kind(f"the name of an environment variable with keys: {_KEYS}", read, Lexis.TEXT, secret=True)


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Keys in Base64, apart by white space or commas.

    Raises:
        ValueError: There are none or too many, one is no key, or one is there twice; none is ever quoted.
    """
    keys: list[bytes] = []
    for number, word in enumerate(text.replace(",", " ").split(), 1):
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"key {number} is not Base64") from None
        if len(key) != KEY_BYTES:
            raise ValueError(f"key {number} has {len(key)} bytes")
        if key in keys:
            raise ValueError(f"key {number} is there twice")
        keys.append(key)
    if not keys:
        raise ValueError("there are no keys")
    if len(keys) > KEYS_MAX:
        raise ValueError(f"there are more than {KEYS_MAX} keys")
    return tuple(keys)
