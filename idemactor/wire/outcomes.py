"""Outcomes on their way in and out (contract, 5, 6 and 12)."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Final

from idemactor.core import limits
from idemactor.core.record import Outcome
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
from idemactor.wire.field_names import TOKEN
from idemactor.wire.fields import Dialect, Kind, Reader, integer, text_reader

_MEMBERS: Final = {dialect: names | {"status", "headers"} for dialect, names in BODY_MEMBERS.items()}

_HEADERS: Final = "headers"

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""What no value of a header field has (RFC 9110, section 5.5). What is beyond ASCII is obs-text there."""

_STATUS: Final = integer(limits.OUTCOME_STATUS_MIN, limits.OUTCOME_STATUS_MAX)

_GIVEN_HEADERS_SCHEMA: Final = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [
            {"type": "string", "pattern": f"^{TOKEN.pattern}$"},
            {"type": "string", "pattern": r"^[^\x00-\x08\x0a-\x1f\x7f]*$"},
        ],
        "minItems": 2,
        "maxItems": 2,
    },
}

GIVEN_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "status": _STATUS.schema,
        "headers": {"anyOf": [_GIVEN_HEADERS_SCHEMA, {"type": "null"}]},
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
        pairs = _checked_pairs(value.get("headers"), text_in)
        return Outcome(read_status(value["status"]), pairs, body_of_members(value, dialect))

    def read_named(value: object) -> Outcome:
        # A caller looks for the member of its own call; the detail says what is wrong inside.
        try:
            return read(value)
        except InvalidRequest as error:
            field = f"{name}.{_HEADERS}" if error.field == _HEADERS else name
            raise InvalidRequest(f"{name}: {error.detail}", field=field) from None

    return read_named


def _checked_pairs(headers: object, text_in: Callable[[object], str | None]) -> tuple[tuple[str, str], ...]:
    """Header pairs that an answer can have: what is stored is what is replayed."""
    try:
        pairs = header_pairs(headers, text_in)
    except InvalidRequest as error:
        raise InvalidRequest(error.detail, field=_HEADERS) from None
    for name, value in pairs:
        if TOKEN.fullmatch(name) is None:
            raise InvalidRequest("a header's name is a token (RFC 9110, section 5.1)", field=_HEADERS)
        if _CONTROL.search(value) is not None:
            raise InvalidRequest("a header's value has no control character but HTAB", field=_HEADERS)
    return pairs


OUTCOME: Final = Kind(GIVEN_SCHEMA, _outcome_reader)
