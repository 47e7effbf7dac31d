"""Bodies as sources read them: what stands at a name, and what counts of the whole.

What is named and not there is ``ABSENT``. Where the root of a JSON body is an array of operations, a name that does
not begin with an index leads into each of them, and what stands there is a ``Spread``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import unquote_plus

from idemactor.core.pointers import ABSENT, pick, prune, tree_of
from idemactor.errors import InvalidRequest
from idemactor.gateway.multipart import parts_of
from idemactor.gateway.plan import Plan
from idemactor.gateway.request import RawRequest
from idemactor.gateway.words import Format
from idemactor.wire.media import is_form, is_json
from idemactor.wire.strict_json import InvalidJSON, parse

FIELDS_MAX: Final = 10_000
"""The most fields of a form, and parameters of a query."""
PATTERN_BYTES_MAX: Final = 65_536
"""The longest text that a pattern is tried on: what a pattern costs is its author's matter, within this."""

BODY_FIELD: Final = "body"

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")

Tokens = tuple[str, ...]
Change = Callable[[object], object]
"""Gives what counts instead of a value."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What stands at one name in each operation of an array, in order."""

    values: tuple[object, ...]


class Body(Protocol):
    """A body that was read. What counts of one that was read differently is never the same: bytes are not text."""

    def member(self, tokens: Tokens) -> object:
        """What stands at a name; ``ABSENT``, or a ``Spread``."""

    def content(self, left_out: Sequence[Tokens], changes: Mapping[Tokens, Change]) -> object:
        """What counts of it, for ``canonical``."""


def read_body(kind: Format, plan: Plan, request: RawRequest) -> Body:
    """The body of ``request``.

    Raises:
        InvalidRequest: It is not of this format.
    """
    match kind:
        case Format.JSON:
            return _json(request.body)
        case Format.FORM:
            return _form(request.body)
        case Format.TEXT:
            return _text(request.body, plan.pattern)
        case Format.BYTES:
            return _opaque(request)
        case Format.AUTO:
            return _of_its_type(request)


def _of_its_type(request: RawRequest) -> Body:
    types = request.header("Content-Type")
    codings = [coding for coding in request.header("Content-Encoding") if coding.lower() != "identity"]
    if request.body and len(types) == 1 and not codings:
        if is_json(types[0]):
            return _json(request.body)
        if is_form(types[0]):
            return _form(request.body)
    return _opaque(request)


# ---------------------------------------------------------------------------------------------------------------- JSON


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON body; an array at its root is one delivery of several operations."""

    root: object

    def member(self, tokens: Tokens) -> object:
        """What a JSON Pointer finds."""
        if self._spreads(tokens):
            assert isinstance(self.root, list)
            found = tuple(pick(operation, tokens, {}) for operation in self.root)
            return Spread(found) if found else ABSENT
        return pick(self.root, tokens, {})

    def content(self, left_out: Sequence[Tokens], changes: Mapping[Tokens, Change]) -> object:
        """The value, without what is left out."""
        # Pointers are those of the body as it came: what is left out goes last, so that it moves nothing.
        value = self.root
        for tokens, change in changes.items():
            if self._spreads(tokens) and isinstance(value, list):
                value = [_changed(operation, tokens, change) for operation in value]
            else:
                value = _changed(value, tokens, change)
        spread = tree_of(tokens for tokens in left_out if self._spreads(tokens))
        if spread and isinstance(value, list):
            value = [prune(operation, spread) for operation in value]
        return prune(value, tree_of(tokens for tokens in left_out if not self._spreads(tokens)))

    def _spreads(self, tokens: Tokens) -> bool:
        return isinstance(self.root, list) and _INDEX.fullmatch(tokens[0]) is None


def _json(data: bytes) -> Json:
    try:
        return Json(parse(data))
    except InvalidJSON as error:
        raise InvalidRequest(f"the body of the request: {error}", field=BODY_FIELD) from None


def _changed(value: object, tokens: Tokens, change: Change) -> object:
    """``value`` with what the tokens lead to changed; the rest is shared."""
    if not tokens:
        return change(value)
    token, rest = tokens[0], tokens[1:]
    if isinstance(value, dict) and token in value:
        return {**value, token: _changed(value[token], rest, change)}
    if isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
        at = int(token)
        return [*value[:at], _changed(value[at], rest, change), *value[at + 1 :]]
    return value


# --------------------------------------------------------------------------------------------------------------- forms


@dataclass(frozen=True, slots=True)
class Field:
    """One ``name=value`` of a form or a query, and its bytes as they were sent."""

    name: str
    value: str
    raw: bytes


def fields_of(data: bytes, where: str) -> tuple[Field, ...]:
    """The fields of ``application/x-www-form-urlencoded`` bytes; bytes that are not UTF-8 stay apart as surrogates.

    Raises:
        InvalidRequest: There are too many.
    """
    if data.count(b"&") >= FIELDS_MAX:
        raise InvalidRequest(f"there are more than {FIELDS_MAX} fields", field=where)
    return tuple(_field(raw) for raw in data.split(b"&") if raw)


def _field(raw: bytes) -> Field:
    name, _, value = raw.decode("latin-1").partition("=")
    return Field(_decoded(name), _decoded(value), raw)


def _decoded(text: str) -> str:
    # Latin-1 is what the bytes were; percent signs add others. Together they are UTF-8, or they are not.
    return unquote_plus(text, "latin-1").encode("latin-1").decode(errors="surrogateescape")


def value_of(fields: Sequence[Field], name: str, blamed: str) -> object:
    """The value of the one field ``name``; ``ABSENT`` where there is none.

    Raises:
        InvalidRequest: There are several: which one counts is anybody's guess.
    """
    found = [field.value for field in fields if field.name == name]
    if len(found) > 1:
        raise InvalidRequest(f"{blamed} is there more than once", field=blamed)
    return found[0] if found else ABSENT


def counted(fields: Sequence[Field], left_out: Sequence[str], changes: Mapping[str, Change]) -> list[object]:
    """What counts of ``fields``: as they were sent, but for those that are left out or changed."""
    return [
        [field.name, changes[field.name](field.value)] if field.name in changes else field.raw
        for field in fields
        if field.name not in left_out
    ]


@dataclass(frozen=True, slots=True)
class Form:
    """A form; its fields in the order in which they were sent."""

    fields: tuple[Field, ...]
    raw: bytes

    def member(self, tokens: Tokens) -> object:
        """The value of a field; there is nothing within one."""
        return ABSENT if len(tokens) > 1 else value_of(self.fields, tokens[0], f"/{tokens[0]}")

    def content(self, left_out: Sequence[Tokens], changes: Mapping[Tokens, Change]) -> object:
        """Its bytes; where something is left out or changed, those of each field that counts."""
        if not left_out and not changes:
            return self.raw if self.fields else b""
        by_name = {tokens[0]: change for tokens, change in changes.items() if len(tokens) == 1}
        return counted(self.fields, [tokens[0] for tokens in left_out if len(tokens) == 1], by_name)


def _form(data: bytes) -> Form:
    return Form(fields_of(data, BODY_FIELD), data)


# ---------------------------------------------------------------------------------------------------------------- text


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text, and how the source's pattern matches it."""

    raw: bytes
    match: re.Match[str] | None

    def member(self, tokens: Tokens) -> object:
        """What a named group matched."""
        if self.match is None or tokens[0] not in self.match.re.groupindex:
            return ABSENT
        found = self.match[tokens[0]]
        return ABSENT if found is None else found

    def content(self, left_out: Sequence[Tokens], changes: Mapping[Tokens, Change]) -> object:
        """Its bytes; where something is left out or changed, the text between."""
        if self.match is None or not (left_out or changes):
            return self.raw
        cut: dict[str, Change | None] = {tokens[0]: change for tokens, change in changes.items()}
        cut |= {tokens[0]: None for tokens in left_out}
        return _pieces(self.match, cut)


def _pieces(match: re.Match[str], cut: Mapping[str, Change | None]) -> list[object]:
    """The text without the named groups; in the place of one that is changed, its name and its value."""
    # A group that holds another one goes first, and takes that along.
    spans = sorted((match.start(name), -match.end(name), name) for name in cut if match[name] is not None)
    pieces: list[object] = []
    at = 0
    for start, minus_end, name in spans:
        if start < at:
            continue
        change = cut[name]
        pieces.append(match.string[at:start])
        if change is not None:
            pieces.append([name, change(match[name])])
        at = -minus_end
    return [*pieces, match.string[at:]]


def _text(data: bytes, pattern: re.Pattern[str] | None) -> Text:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 text at byte {error.start}", field=BODY_FIELD) from None
    if pattern is None:
        return Text(data, None)
    if len(data) > PATTERN_BYTES_MAX:
        raise InvalidRequest(
            f"a body that a pattern is tried on has at most {PATTERN_BYTES_MAX} bytes", field=BODY_FIELD
        )
    match = pattern.fullmatch(text)
    if match is None:
        raise InvalidRequest("the body does not match the source's pattern", field=BODY_FIELD)
    return Text(data, match)


# --------------------------------------------------------------------------------------------------------------- bytes


@dataclass(frozen=True, slots=True)
class Opaque:
    """A body that is compared and not read."""

    parts: object

    def member(self, tokens: Tokens) -> object:  # noqa: ARG002 - The signature is every body's.
        """Nothing: it has no members."""
        return ABSENT

    def content(self, left_out: Sequence[Tokens], changes: Mapping[Tokens, Change]) -> object:  # noqa: ARG002
        """All of it."""
        return self.parts


def _opaque(request: RawRequest) -> Opaque:
    types = request.header("Content-Type")
    parts = parts_of(types[0], request.body) if len(types) == 1 else None
    return Opaque(request.body if parts is None else parts)
