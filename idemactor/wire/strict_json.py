"""Strict JSON: bytes to values, with nothing guessed and nothing lost (RFC 8259; contract, 9).

The scanner is the standard library's, in C. What it is lenient about is closed off around it: encodings, NaN,
members named twice, lone surrogates, depth, and numbers that ``int`` and ``float`` would change.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, NoReturn

from idemactor.core.fingerprint import Number
from idemactor.core.limits import NESTING_MAX, VALUES_MAX
from idemactor.errors import IdemactorError

_INTEGER_DIGITS_MAX: Final = 18
"""Integers of up to this many digits become ``int``: all of them fit 64 bits, and none is slow to convert."""

_BOM: Final = b"\xef\xbb\xbf"
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or what is left of one that never ends: every quote matches, so that the search is linear."""

_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""What the members of calls look like; any other name may be part of what somebody keeps secret."""


class InvalidJSON(IdemactorError, ValueError):
    """Bytes that are not strict JSON; the message says why and where, and never quotes them.

    Attributes:
        member: The member of the outermost object that is wrong, or holds what is wrong; None: not known, or not to be
            repeated.
    """

    def __init__(self, detail: str, member: str | None = None) -> None:
        super().__init__(detail)
        self.member = member


def parse(data: bytes, *, max_depth: int = NESTING_MAX) -> Any:
    """The JSON value that ``data`` holds.

    An integer literal of up to 18 digits is an ``int``; every other number, ``1.0``, ``1e3`` and ``-0`` too,
    is the exact ``Number`` that was written, so that it never passes for an integer.

    Args:
        data: UTF-8 without a byte order mark.
        max_depth: How many arrays and objects may lie in each other, the outermost counted as one.

    Raises:
        InvalidJSON: Anything else than one JSON text, a member named twice, a lone surrogate, or too deep, or more
            than ``VALUES_MAX`` values.
    """
    if data.startswith(_BOM):
        raise InvalidJSON("a byte order mark before the JSON text")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidJSON(f"not UTF-8 at byte {error.start}") from None
    _check_depth(data, max_depth)
    _check_values(data)
    try:
        value = _DECODER.decode(text)
    except _NamedTwice:
        raise InvalidJSON("a member is named twice", _where(text, _names_twice)) from None
    except _NoNumber:
        raise InvalidJSON("NaN and infinities are not JSON", _where(text, _is_no_number)) from None
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").rstrip(": ").lower()
        raise InvalidJSON(f"not JSON: {what} at character {error.pos}") from None
    # UTF-8 cannot carry a surrogate: only an escape can. Most bodies have none.
    if _SURROGATE_ESCAPE.search(data) is not None and _is_inside(value, _has_surrogate):
        raise InvalidJSON("a string holds a lone surrogate", _where(text, _has_surrogate))
    return value


def _check_depth(data: bytes, max_depth: int) -> None:
    """Measure the nesting before the scanner recurses into it."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > max_depth:
        raise InvalidJSON(f"nested deeper than {max_depth} levels")


def _check_values(data: bytes) -> None:
    """Count the values before any is built: every one but the first of its container follows a comma."""
    if data.count(b",") >= VALUES_MAX and _STRING.sub(b"", data).count(b",") >= VALUES_MAX:
        raise InvalidJSON(f"more than {VALUES_MAX} values")


class _NamedTwice(Exception):
    """A member is."""


class _NoNumber(Exception):
    """NaN, or an infinity."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _NamedTwice
    return members


def _integer(literal: str) -> int | Number:
    if len(literal) <= _INTEGER_DIGITS_MAX or (literal[0] == "-" and len(literal) == _INTEGER_DIGITS_MAX + 1):
        # Minus zero is a number like any other to a fingerprint, but no int can hold it.
        return Number(literal) if literal == "-0" else int(literal)
    return Number(literal)


def _constant(_name: str) -> NoReturn:
    raise _NoNumber


class _Pairs(list[tuple[str, Any]]):
    """The members of an object as they were written."""


def _where(text: str, is_wrong: Callable[[Any], bool]) -> str | None:
    """The member of the outermost object that is wrong: read once more, since only who is refused pays for it."""
    try:
        outermost = _LENIENT.decode(text)
    except json.JSONDecodeError:  # What comes behind it is no JSON at all.
        return None
    if not isinstance(outermost, _Pairs):
        return None
    found = [name for name, value in outermost if _is_inside((name, value), is_wrong)]
    found += (name for name, times in Counter(name for name, _ in outermost).items() if times > 1)
    return found[0] if found and NAME.fullmatch(found[0]) else None


def _is_inside(value: Any, is_wrong: Callable[[Any], bool]) -> bool:
    """Whether anything in it is wrong; the whole value is walked, without recursion."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if is_wrong(item):
            return True
        if isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
    return False


def _names_twice(item: Any) -> bool:
    return isinstance(item, _Pairs) and len(item) != len({name for name, _ in item})


def _is_no_number(item: Any) -> bool:
    return item is _NoNumber


def _has_surrogate(item: Any) -> bool:
    return isinstance(item, str) and _SURROGATE.search(item) is not None


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=Number, parse_constant=_constant
)
_LENIENT: Final = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=str, parse_float=str, parse_constant=lambda _name: _NoNumber
)
