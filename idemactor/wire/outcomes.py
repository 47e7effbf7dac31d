"""Outcomes on their way in and out (contract, 5, 6 and 12)."""

from __future__ import annotations

import binascii
from typing import Final

from idemactor.core import limits
from idemactor.core.record import HEADER_BYTES, Outcome
from idemactor.errors import InvalidRequest
from idemactor.wire.contents import (
    BODY_MEMBERS,
    BODY_SCHEMAS,
    GIVEN_BODY_SCHEMAS,
    HEADERS_SCHEMA,
    ONE_BODY,
    body_of_members,
    header_pairs,
)
from idemactor.wire.fields import Dialect, Kind, Reader, integer, text_reader

_MEMBERS: Final = {dialect: names | {"status", "headers"} for dialect, names in BODY_MEMBERS.items()}

_STATUS: Final = integer(limits.OUTCOME_STATUS_MIN, limits.OUTCOME_STATUS_MAX)

GIVEN_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "status": _STATUS.schema,
        "headers": {"anyOf": [HEADERS_SCHEMA, {"type": "null"}]},
        **GIVEN_BODY_SCHEMAS,
    },
    "required": ["status"],
    "additionalProperties": False,
    "not": ONE_BODY,
}
"""The JSON Schema of an outcome in a request over HTTP."""

SHOWN_SCHEMA: Final = {
    "oneOf": [
        *(
            {
                "type": "object",
                "properties": {"status": _STATUS.schema, "headers": HEADERS_SCHEMA, name: schema},
                "required": ["status", "headers", name],
                "additionalProperties": False,
            }
            for name, schema in BODY_SCHEMAS.items()
        ),
        {
            "type": "object",
            "properties": {
                "status": _STATUS.schema,
                "headers": {"type": "array", "maxItems": 0},
                "omitted": {"const": True},
            },
            "required": ["status", "headers", "omitted"],
            "additionalProperties": False,
        },
    ]
}
"""The JSON Schema of an outcome in an answer over HTTP."""


_AS_IT_IS: Final = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
_TWO_BYTES: Final = b'"\\\b\f\n\r\t'
_FOLLOWING: Final = bytes(range(0x80, 0xC0))
_BEGIN_A_PAIR: Final = bytes(range(0xF0, 0xF8))
"""How UTF-8 begins what JSON writes as a pair of surrogates."""
_ESCAPE_BYTES: Final = 6


def cost_in(dialect: Dialect, outcome: Outcome) -> int:
    """What an outcome takes in memory, bytes, by an estimate, and no less than in an answer in that dialect."""
    if dialect is Dialect.MSGPACK or outcome.omitted:
        return outcome.cost()
    headers = "".join([text for pair in outcome.headers for text in pair])
    return _body_size(outcome.body) + _text_size(headers.encode()) + HEADER_BYTES * len(outcome.headers)


def _body_size(body: bytes) -> int:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            return 4 * ((len(body) + 2) // 3)
    return _text_size(body)


def _text_size(text: bytes) -> int:
    """How long UTF-8 is as JSON (RFC 8259, section 7) in ASCII: what is not that is escaped, six bytes for a unit."""
    rest = text.translate(None, _AS_IT_IS)
    if not rest:
        return len(text)
    escaped = rest.translate(None, _TWO_BYTES)
    size = len(text) - len(rest) + 2 * (len(rest) - len(escaped))
    if escaped.isascii():
        return size + _ESCAPE_BYTES * len(escaped)
    units = escaped.translate(None, _FOLLOWING)
    pairs = len(units) - len(units.translate(None, _BEGIN_A_PAIR))
    return size + _ESCAPE_BYTES * (len(units) + pairs)


def outcome_body(outcome: Outcome | None, dialect: Dialect) -> dict[str, object] | None:
    """The members of an outcome as answers show them; None where there is none."""
    if outcome is None:
        return None
    if outcome.omitted:
        return {"status": outcome.status, "headers": [], "omitted": True}
    shown: dict[str, object] = {"status": outcome.status, "headers": [list(pair) for pair in outcome.headers]}
    if dialect is Dialect.MSGPACK:
        shown["body"] = outcome.body
        return shown
    try:
        shown["body"] = outcome.body.decode()
    except UnicodeDecodeError:
        shown["body_b64"] = binascii.b2a_base64(outcome.body, newline=False).decode("ascii")
    return shown


def _outcome_reader(name: str, dialect: Dialect) -> Reader:
    known = _MEMBERS[dialect]
    read_status = _STATUS.reader("status", dialect)
    text_in = text_reader(dialect)

    def read(value: object) -> Outcome:
        if not isinstance(value, dict):
            raise InvalidRequest("it is an object")
        if not known.issuperset(value):
            raise InvalidRequest(f"its members are {', '.join(sorted(known))}")
        if value.get("status") is None:
            raise InvalidRequest("its status is missing")
        pairs = header_pairs(value.get("headers"), text_in)
        return Outcome(read_status(value["status"]), pairs, body_of_members(value, dialect))

    def read_named(value: object) -> Outcome:
        # A caller looks for the member of its own call; the detail says what is wrong inside.
        try:
            return read(value)
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}: {error.detail}", field=name) from None

    return read_named


OUTCOME: Final = Kind(GIVEN_SCHEMA, _outcome_reader)
