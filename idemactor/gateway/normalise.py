"""One spelling for what means the same, only where a source says so (contract, 9)."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Final

from idemactor.core.fingerprint import InvalidPayload, Number, canonical_number
from idemactor.errors import IdemactorError

BLANK: Final = " \t\r\n\f\v"
"""White space at the ends of a value: ASCII's."""
_BLANK_BYTES: Final = BLANK.encode()

_UPPER: Final = str.maketrans(ascii_lowercase, ascii_uppercase)
_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
# Case is ASCII's alone: in Unicode upper("ß") is "SS", and two different values would become one.

_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_SYMBOL: Final = re.compile(r"(?:[A-Za-z0-9_]+:)?([A-Za-z0-9]+(?:[-/_][A-Za-z0-9]+)*+)(!?(?:\.[A-Za-z0-9]+)?)")
"""An exchange's name and a colon, or not; names with separators between them, or not; ``!`` for a continuous future,
and a suffix such as ``.P``."""
_SEPARATORS: Final = str.maketrans("", "", "-/_")
_PERPETUAL: Final = ".P"


class Normaliser(enum.StrEnum):
    """What may be done to a value before it is used."""

    TRIM = "trim"
    """White space at the ends of a text goes."""
    UPPER = "upper"
    """A text in upper case, as far as it is ASCII."""
    LOWER = "lower"
    DECIMAL = "decimal"
    """A number, or a text that is one, as an exact decimal: ``"0.10"``, ``0.1`` and ``1e-1`` are one."""
    SYMBOL = "symbol"
    """``BINANCE:BTCUSDT``, ``BTC-USDT``, ``btc/usdt`` become ``BTCUSDT``; ``BTCUSDT.P`` stays another instrument."""
    PERPETUAL = "perpetual"
    """The ``.P`` of a perpetual contract goes."""
    UUID = "uuid"
    """A UUID in lower case."""


class NotNormal(IdemactorError, ValueError):
    """A value that is not of the kind that a normaliser takes; the message never quotes it."""


def normalised(value: object, normalisers: Sequence[Normaliser]) -> object:
    """``value`` as each of ``normalisers`` in turn leaves it.

    Raises:
        NotNormal: One of them takes no such value.
    """
    for normaliser in normalisers:
        value = _APPLY[normaliser](value)
    return value


def is_missing(value: object) -> bool:
    """Whether a field counts as missing: null, or a text that is empty after trimming (contract, 12)."""
    return value is None or (isinstance(value, str) and not value.strip(BLANK))


def is_nothing(value: object) -> bool:
    """Whether nothing is left of a whole body but its shape: all in it is missing."""
    if isinstance(value, bytes):
        return not value.strip(_BLANK_BYTES)
    if isinstance(value, dict):
        return all(is_nothing(member) for member in value.values())
    if isinstance(value, list):
        return all(is_nothing(item) for item in value)
    return is_missing(value)


def _on_text(change: Callable[[str], str]) -> Callable[[object], object]:
    # What is no text has neither ends nor a case.
    return lambda value: change(value) if isinstance(value, str) else value


def _decimal(value: object) -> object:
    if type(value) is int:
        return value
    text = value.text if isinstance(value, Number) else repr(value) if isinstance(value, float) else value
    if not isinstance(text, str) or text.startswith("+-"):
        raise NotNormal("it is no decimal number")
    text = text.removeprefix("+")
    try:
        # Exponents are checked here and never expanded.
        canonical_number(text)
    except InvalidPayload as error:
        raise NotNormal(str(error)) from None
    return Number(text)


def _symbol(value: object) -> object:
    match = _SYMBOL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise NotNormal("it is no symbol of an instrument")
    return (match[1].translate(_SEPARATORS) + match[2]).translate(_UPPER)


def _uuid(value: object) -> object:
    if not isinstance(value, str) or _UUID.fullmatch(value) is None:
        raise NotNormal("it is no UUID")
    return value.translate(_LOWER)


_APPLY: Final[Mapping[Normaliser, Callable[[object], object]]] = {
    Normaliser.TRIM: _on_text(lambda text: text.strip(BLANK)),
    Normaliser.UPPER: _on_text(lambda text: text.translate(_UPPER)),
    Normaliser.LOWER: _on_text(lambda text: text.translate(_LOWER)),
    Normaliser.DECIMAL: _decimal,
    Normaliser.SYMBOL: _symbol,
    Normaliser.PERPETUAL: _on_text(lambda text: text.removesuffix(_PERPETUAL)),
    Normaliser.UUID: _uuid,
}
