"""The operation id in the form that a downstream takes for its own name of an order. No I/O.

An operation id is a UUID: 36 characters of ``0-9a-f`` and ``-``. Where a downstream takes those it gets them as they
are, and whoever searches its logs finds them. Where a prefix has to fit in beside it, or the alphabet is another,
the 128 bits are written with the digits that there are, always at the same length. So no two operations get the same
name, the same operation always gets the same one, and names sort as their operations began.
"""

from __future__ import annotations

import re
from typing import Final

BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""Digits, in the order of their code points: 22 of them hold an operation id."""

BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
"""The same for a downstream that does not tell upper case from lower: 25 hold an operation id."""

EXCHANGE_CHARS_MAX: Final = 36
"""The longest client order id of Binance and of Bybit."""

_BITS: Final = 128
_OPERATION_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Binance, USD-M Futures API, "New Order", newClientOrderId: ^[\.A-Z\:/a-z0-9_-]{1,36}$
_BINANCE: Final = re.compile(r"[.A-Z:/a-z0-9_-]{1,36}")
# Bybit, V5 API, "Place Order", orderLinkId: at most 36 characters; digits, letters of both cases, dashes, underscores.
_BYBIT: Final = re.compile(r"[A-Za-z0-9_-]{1,36}")


def client_order_id(
    operation_id: str, *, prefix: str = "", max_chars: int = EXCHANGE_CHARS_MAX, alphabet: str = BASE62
) -> str:
    """``prefix``, then the operation id written with the digits of ``alphabet``, at a length that never varies.

    Args:
        operation_id: As ``hold.operation_id`` and every grant give it.
        prefix: What comes first: a broker's tag, or whose orders these are.
        max_chars: The longest name that the downstream takes.
        alphabet: The digits, each once, two at least.

    Raises:
        ValueError: The operation id is none, the alphabet has a digit twice, or all of it does not fit.
    """
    if len(alphabet) < 2 or len(set(alphabet)) != len(alphabet):
        raise ValueError("an alphabet has at least two digits, and each of them once")
    rest = int(_checked(operation_id).replace("-", ""), 16)
    digits: list[str] = []
    for _ in range(_width(len(alphabet))):
        rest, digit = divmod(rest, len(alphabet))
        digits.append(alphabet[digit])
    name = prefix + "".join(reversed(digits))
    if len(name) > max_chars:
        room = max_chars - len(digits)
        left = f"leaves {room} for a prefix" if room > 0 else f"is too short: it takes {len(digits)} without one"
        raise ValueError(f"{max_chars} characters are not enough: {len(alphabet)} digits make an id that {left}")
    return name


def binance_client_order_id(operation_id: str, *, prefix: str = "") -> str:
    r"""The operation id as Binance's ``newClientOrderId``, which has to match ``^[\.A-Z\:/a-z0-9_-]{1,36}$``.

    Binance takes the same id again once its order is filled: it finds an order by its id, it does not stop a second.

    Args:
        operation_id: As every grant gives it; without a prefix it is used as it is.
        prefix: At most 14 characters.

    Raises:
        ValueError: The operation id is none, or the prefix is too long or has a character that Binance refuses.
    """
    return _for_exchange(operation_id, prefix, _BINANCE, "Binance")


def bybit_order_link_id(operation_id: str, *, prefix: str = "") -> str:
    """The operation id as Bybit's ``orderLinkId``: up to 36 letters, digits, dashes and underscores, always unique.

    Args:
        operation_id: As every grant gives it; without a prefix it is used as it is.
        prefix: At most 14 characters.

    Raises:
        ValueError: The operation id is none, or the prefix is too long or has a character that Bybit refuses.
    """
    return _for_exchange(operation_id, prefix, _BYBIT, "Bybit")


def _for_exchange(operation_id: str, prefix: str, allowed: re.Pattern[str], exchange: str) -> str:
    name = client_order_id(operation_id, prefix=prefix) if prefix else _checked(operation_id)
    if not allowed.fullmatch(name):
        raise ValueError(f"{exchange} takes only characters of {allowed.pattern}, and the prefix has another")
    return name


def _checked(operation_id: str) -> str:
    """Only the canonical form is taken: another spelling of the same operation would be another name elsewhere."""
    if not _OPERATION_ID.fullmatch(operation_id):
        raise ValueError("that is no operation id, which is a UUID in lower case with its dashes")
    return operation_id


def _width(base: int) -> int:
    """How many digits of ``base`` hold any operation id."""
    width, reach = 1, base
    while reach < 1 << _BITS:
        width, reach = width + 1, reach * base
    return width
