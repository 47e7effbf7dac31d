"""The kinds of value that a setting can have: what is allowed, said in words, and the way to read it."""

from __future__ import annotations

import enum
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from idemactor.config.tree import Leaf
from idemactor.core.keys import InvalidNamespace, check_namespace

T = TypeVar("T")
E = TypeVar("E", bound=enum.StrEnum)

SHOWN_CHARS_MAX: Final = 200
"""How much of a wrong value an error message quotes."""


NAME_ALLOWED: Final = 'a lower-case letter followed by at most 62 of "a" to "z", "0" to "9", "_" and "-"'
"""What names of namespaces, tenants and tokens are made of: one rule, the contract's, for all three."""


def is_name(text: str) -> bool:
    """Can this be the name of a namespace, a tenant or a token?"""
    try:
        check_namespace(text)
    except InvalidNamespace:
        return False
    return True


class Lexis(enum.Enum):
    """How the bare text of an environment variable becomes a value."""

    LITERAL = enum.auto()
    """As a TOML value where it is one, else as text."""
    TEXT = enum.auto()
    """As it stands, unless it is a quoted TOML string."""
    LIST = enum.auto()
    """As a TOML array where it is one, else split at its commas."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One kind of value.

    Attributes:
        allowed: What a right value is, to follow "must be".
        read: Makes the value; a ``ValueError`` refuses it, and its text, if any, says more than ``allowed``.
        lexis: How bare text is understood.
        secret: A wrong value is not quoted.
    """

    allowed: str
    read: Callable[[object], T]
    lexis: Lexis = Lexis.LITERAL
    secret: bool = False

    def of(self, leaf: Leaf) -> T:
        """The value of a leaf.

        Raises:
            ValueError: It is not of this kind; the message is complete.
        """
        value = _understand(str(leaf.value), self.lexis) if leaf.is_text else leaf.value
        try:
            return self.read(value)
        except ValueError as error:
            why = f": {error}" if str(error) else "" if self.secret else f", not {show(value)}"
            raise ValueError(f"must be {self.allowed}{why}") from None


def show(value: object) -> str:
    """A value as TOML would write it, cut where it is long."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(show(item) for item in value)}]"
    elif isinstance(value, dict):
        text = "a table"
    else:
        text = str(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


def _understand(text: str, lexis: Lexis) -> object:
    literal = _literal(text)
    match lexis:
        case Lexis.LITERAL:
            return text if literal is None else literal
        case Lexis.TEXT:
            return literal if isinstance(literal, str) else text
        case Lexis.LIST:
            if isinstance(literal, list):
                return literal
            return [part for part in (part.strip() for part in text.split(",")) if part]


def _literal(text: str) -> object | None:
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return None
    # More than one member: the text had lines of its own.
    return document["value"] if len(document) == 1 else None


def integer(low: int, high: int) -> Kind[int]:
    """An integer within bounds, both included."""

    def read(value: object) -> int:
        # In Python a bool is an int, in a configuration it is a mistake.
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    return Kind(f"an integer from {low} to {high}", read)


def number(low: float, high: float) -> Kind[float]:
    """A number within bounds, both included; a whole one needs no point."""

    def read(value: object) -> float:
        # Comparing refuses what is no number, too: nan is within no bounds.
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError
        return float(value)

    return Kind(f"a number from {low:g} to {high:g}", read)


def boolean() -> Kind[bool]:
    """``true`` or ``false``, and nothing that resembles them."""

    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return Kind("true or false", read)


def choice(words: type[E]) -> Kind[E]:
    """One word of an enumeration."""

    def read(value: object) -> E:
        try:
            return words(_text(value))
        except ValueError:
            # The enumeration's own message says less than what is allowed.
            raise ValueError from None

    return Kind(" or ".join(show(word.value) for word in words), read, Lexis.TEXT)


def name() -> Kind[str]:
    """A name of a tenant: as of a namespace."""

    def read(value: object) -> str:
        if not is_name(text := _text(value)):
            raise ValueError
        return text

    return Kind(NAME_ALLOWED, read, Lexis.TEXT)


def sha256() -> Kind[bytes]:
    """The SHA-256 of a token in hexadecimal; a wrong one may be the token itself, and is never quoted."""

    def read(value: object) -> bytes:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", text := _text(value)):
            raise ValueError
        return bytes.fromhex(text)

    return Kind("the token's SHA-256 in 64 hexadecimal digits", read, Lexis.TEXT, secret=True)


def path() -> Kind[Path]:
    """The path of a file or a directory."""

    def read(value: object) -> Path:
        if not (text := _text(value)) or "\0" in text:
            raise ValueError
        return Path(text)

    return Kind("a path", read, Lexis.TEXT)


def words() -> Kind[str]:
    """Any text that shows."""

    def read(value: object) -> str:
        if not (text := _text(value)).strip() or not text.isprintable():
            raise ValueError
        return text

    return Kind("a text", read, Lexis.TEXT)


def http_url() -> Kind[str]:
    """Where something is on the web, without a query."""

    def read(value: object) -> str:
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", text := _text(value)):
            raise ValueError
        return text

    return Kind('"http://HOST:PORT" or "https://HOST:PORT", perhaps with a path', read, Lexis.TEXT)


def texts(what: str, check: Callable[[str], object]) -> Kind[tuple[str, ...]]:
    """A list of texts, none of them twice; ``check`` raises a ValueError that says what is wrong with one."""

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError
        items = tuple(_text(item) for item in value)
        for index, item in enumerate(items):
            try:
                check(item)
            except ValueError as error:
                raise ValueError(f"{show(item)}: {error}") from None
            if item in items[:index]:
                raise ValueError(f"{show(item)} is in it twice")
        return items

    return Kind(f"a list of {what}", read, Lexis.LIST)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value
