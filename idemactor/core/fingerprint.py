"""Fingerprints: a digest of what a payload means, not of how it is written (contract, 9 and 12).

A value is fed to SHA-256 in a canonical form that is injective over meaning: every value is its type's tag,
its length, and its bytes, so that no two different values feed the same bytes. Members of an object go in
code point order, numbers as exact decimals, strings as their code points.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeAlias

from idemactor.core.limits import NESTING_MAX
from idemactor.core.pointers import ABSENT, InvalidPointer, Tree, parse_pointer, pick, prune, tree_of
from idemactor.errors import IdemactorError

VERSION: Final = "v1"
"""Names the canonical form. Another form gets another version, or old digests would look like mismatches."""

CALLER_RULE: Final = "caller"
"""The rule of a fingerprint that the caller computed itself."""

SOURCE_RULE: Final = "source"
"""The family of the rules of sources: the family, the source's name and a digest, joined by colons."""

EXPONENT_DIGITS_MAX: Final = 6
"""How many digits the exponent of a number may be written with."""

_RULE_DIGITS: Final = 16
"""Hex digits of the digest that tells one set of pointers from another: 64 bits for a handful of rules."""

_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")

__all__ = [
    "CALLER_RULE",
    "SOURCE_RULE",
    "VERSION",
    "Fingerprint",
    "FingerprintRule",
    "InvalidPayload",
    "InvalidPointer",
    "Number",
    "canonical",
    "canonical_number",
    "contradict",
    "fingerprint_of",
    "parse_pointer",
]

Put: TypeAlias = Callable[[bytes], None]


class InvalidPayload(IdemactorError, ValueError):
    """A payload without a meaning to compare; the message never quotes it."""


class Number:
    """A JSON number as it was written, kept exact. It is no ``str``: no text field takes it for text."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Number) else NotImplemented

    def __hash__(self) -> int:
        return hash((Number, self.text))

    def __repr__(self) -> str:
        return f"Number({self.text!r})"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A digest of a payload, or any text of the caller's own.

    Attributes:
        value: ``v1:`` and 64 hex digits where the server computed it; up to 128 characters where the caller
            did.
        rule: What it was made under; fingerprints of different rules say nothing about each other, but for those
            of different sources (``contradict``).
    """

    value: str
    rule: str


def contradict(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether the two stand for different payloads: they differ under one rule, or come from different sources.

    What two senders send is never one operation, however alike their ids are. Another rule of one source's own, or
    of a namespace, says nothing: a setting was changed in between.
    """
    if one.rule == other.rule:
        return one.value != other.value
    senders = _sender(one.rule), _sender(other.rule)
    return None not in senders and senders[0] != senders[1]


def _sender(rule: str) -> str | None:
    """The source whose rule this is; None for the rules of namespaces and callers."""
    family, _, rest = rule.partition(":")
    return rest.rpartition(":")[0] if family == SOURCE_RULE else None


@dataclass(frozen=True, slots=True)
class FingerprintRule:
    """Which members of a payload count (JSON Pointers, RFC 6901; the order of the lists does not matter).

    Attributes:
        required: Whether a call without a fingerprint is refused.
        include: Only these members count; empty: all do.
        exclude: These do not count, also within what ``include`` names.
        rule_id: Names the canonical form and the two lists, the same in every process.

    Raises:
        InvalidPointer: On construction, for a text that is no pointer, or for an exclusion of everything.
    """

    required: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rule_id: str = field(init=False, compare=False)
    _included: tuple[tuple[str, tuple[str, ...]], ...] = field(init=False, repr=False, compare=False)
    _excluded: Tree = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        include, exclude = sorted(set(self.include)), sorted(set(self.exclude))
        included = tuple((pointer, parse_pointer(pointer)) for pointer in include)
        excluded = tree_of(parse_pointer(pointer) for pointer in exclude)
        rule_id = VERSION
        if include or exclude:
            rule_id = f"{VERSION}:{sha256(canonical([include, exclude])).hexdigest()[:_RULE_DIGITS]}"
        for name, value in (("rule_id", rule_id), ("_included", included), ("_excluded", excluded)):
            object.__setattr__(self, name, value)

    def select(self, value: object) -> object:
        """What counts of ``value``: all but what is excluded, or of that the named members that are there."""
        if not self._included:
            return prune(value, self._excluded) if self._excluded else value
        found = ((pointer, pick(value, tokens, self._excluded)) for pointer, tokens in self._included)
        return {pointer: member for pointer, member in found if member is not ABSENT}


def fingerprint_of(value: object, rule: FingerprintRule, *, max_depth: int = NESTING_MAX) -> Fingerprint:
    """The fingerprint of a JSON value (``wire/strict_json.py``) or a MessagePack value under ``rule``.

    Raises:
        InvalidPayload: Somewhere in ``value``, counted or not, is a lone surrogate, NaN, an infinity, an
            exponent of more than six digits, a key that is not text, another type, or a level beyond
            ``max_depth``.
    """
    fed = canonical(value, max_depth=max_depth)
    if rule.include or rule.exclude:
        # The whole was walked first: a payload is not made valid by leaving out what is wrong with it. What
        # was selected may be one level deeper than the payload, in the map of what include named.
        fed = canonical(rule.select(value), max_depth=max_depth + 1)
    return Fingerprint(f"{VERSION}:{sha256(fed).hexdigest()}", rule.rule_id)


def canonical(value: object, *, max_depth: int = NESTING_MAX) -> bytes:
    """The canonical form of ``value``: equal exactly where the meaning is.

    Raises:
        InvalidPayload: As in ``fingerprint_of``.
    """
    parts: list[bytes] = []
    _feed(value, parts.append, max_depth)
    return b"".join(parts)


def canonical_number(literal: str) -> str:
    """A decimal literal in canonical form: sign, digits without zeros at either end, ``e``, power of ten.

    The exponent is never expanded and the digits never leave text, so that the cost is linear in the literal.

    Raises:
        InvalidPayload: It is no decimal literal, or its exponent has more than six digits.
    """
    match = _NUMBER.fullmatch(literal)
    if match is None:
        raise InvalidPayload("a number is not a finite decimal")
    sign, whole, fraction, exponent = match.groups(default="")
    if len(exponent.lstrip("+-")) > EXPONENT_DIGITS_MAX:
        raise InvalidPayload(f"the exponent of a number has at most {EXPONENT_DIGITS_MAX} digits")
    return _decimal(sign, whole + fraction, (int(exponent) if exponent else 0) - len(fraction))


def _feed(value: object, put: Put, room: int) -> None:
    """Hand the canonical form of ``value`` to ``put``; ``room`` is how many levels may still be opened."""
    kind = type(value)
    if isinstance(value, str):
        put(_text(value))
    elif kind is bool:
        put(b"t" if value else b"f")
    elif isinstance(value, int):
        put(_tagged(b"n", _integer(value).encode()))
    elif isinstance(value, Number):
        put(_tagged(b"n", canonical_number(value.text).encode()))
    elif value is None:
        put(b"z")
    elif isinstance(value, dict):
        _feed_members(value, put, room)
    elif isinstance(value, list):
        _feed_items(value, put, room)
    elif isinstance(value, float):
        # The shortest decimal that reads back as this float; nan and inf are no decimals and are refused
        # there.
        put(_tagged(b"n", canonical_number(repr(value)).encode()))
    elif isinstance(value, bytes):
        put(_tagged(b"b", value))
    else:
        raise InvalidPayload("a payload holds only null, booleans, numbers, text, bytes, arrays and objects")


def _feed_members(members: dict[object, object], put: Put, room: int) -> None:
    if not room:
        raise InvalidPayload("a payload is nested too deep")
    put(b"m%d:" % len(members))
    try:
        # Python orders text by code point, whatever the locale.
        ordered = sorted(members.items(), key=_name)
    except TypeError:
        raise InvalidPayload("the members of an object are named by text") from None
    for name, value in ordered:
        if not isinstance(name, str):
            raise InvalidPayload("the members of an object are named by text")
        put(_text(name))
        _feed(value, put, room - 1)


def _feed_items(items: list[object], put: Put, room: int) -> None:
    if not room:
        raise InvalidPayload("a payload is nested too deep")
    put(b"l%d:" % len(items))
    for value in items:
        _feed(value, put, room - 1)


def _name(member: tuple[object, object]) -> str:
    return member[0]  # type: ignore[return-value]  # What is no text is refused by the caller.


def _text(text: str) -> bytes:
    try:
        return _tagged(b"s", text.encode())
    except UnicodeEncodeError:
        raise InvalidPayload("a string holds a lone surrogate, or bytes that are not UTF-8") from None


def _tagged(tag: bytes, content: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(content), content)


def _integer(number: int) -> str:
    return _decimal("-", str(-number), 0) if number < 0 else _decimal("", str(number), 0)


def _decimal(sign: str, digits: str, power: int) -> str:
    """The one spelling of ``sign digits * 10**power``; zero has neither sign nor power."""
    digits = digits.lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return "0"
    return f"{sign}{significant}e{power + len(digits) - len(significant)}"
