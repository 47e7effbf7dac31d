"""What a source names in a request: a header, a parameter of the query, the path, a member of the body, the body."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Final

from idemactor.core.pointers import InvalidPointer, parse_pointer
from idemactor.errors import IdemactorError

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token (RFC 9110, section 5.6.2)."""


class InvalidRef(IdemactorError, ValueError):
    """A text that names nothing in a request."""


class Place(enum.Enum):
    """Where something stands in a request."""

    HEADER = "header"
    QUERY = "query"
    MEMBER = "member"
    PATH = "path"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Ref:
    """Something in a request; equal to another spelling of the same (``header:X-A`` and ``header:x-a``).

    Attributes:
        text: As the configuration writes it; what a refusal names.
        place: Where it stands.
        name: Of a header (in lower case) or of a parameter; else empty.
        tokens: Of a member: those of its JSON Pointer (RFC 6901).
    """

    text: str = field(compare=False)
    place: Place
    name: str = ""
    tokens: tuple[str, ...] = ()

    @property
    def spelling(self) -> str:
        """One text for all spellings of the same: names of header fields in lower case."""
        return f"{self.place.value}:{self.name}" if self.place in (Place.HEADER, Place.QUERY) else self.text

    @property
    def within_each(self) -> Ref | None:
        """What this names in one operation of an array, where it begins with an index; else None."""
        if self.place is not Place.MEMBER or not _INDEX.fullmatch(self.tokens[0]):
            return None
        return Ref(self.text, self.place, tokens=self.tokens[1:])

    def meets(self, other: Ref) -> bool:
        """Whether one of the two may be the other or lie in it, where the body is an array of operations, too."""
        pairs = ((self, other), (self.within_each, other), (self, other.within_each))
        return any(one and another and (one.holds(another) or another.holds(one)) for one, another in pairs)

    def holds(self, other: Ref) -> bool:
        """Whether ``other`` is this or within it; the whole body leaves secrets out and holds none."""
        if self.place is not other.place or self.name != other.name:
            return False
        return other.tokens[: len(self.tokens)] == self.tokens


def parse_ref(text: str) -> Ref:
    """What ``text`` names: ``header:NAME``, ``query:NAME``, a JSON Pointer, ``path`` or ``body``.

    Raises:
        InvalidRef: It names nothing; the message says why.
    """
    if text in (Place.PATH.value, Place.BODY.value):
        return Ref(text, Place(text))
    if text.startswith("/"):
        try:
            return Ref(text, Place.MEMBER, tokens=parse_pointer(text))
        except InvalidPointer as error:
            raise InvalidRef(str(error)) from None
    place, _, name = text.partition(":")
    if place == Place.HEADER.value and _HEADER_NAME.fullmatch(name):
        return Ref(text, Place.HEADER, name.lower())
    if place == Place.QUERY.value and name:
        return Ref(text, Place.QUERY, name)
    raise InvalidRef('"header:NAME", "query:NAME" or a JSON Pointer ("/order/id") names something in a request')
