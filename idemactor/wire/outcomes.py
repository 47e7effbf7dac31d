"""Outcomes on their way in and out (contract, 5, 6 and 12)."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Any, Final

from idemactor.core import limits
from idemactor.core.record import Outcome
from idemactor.errors import InvalidRequest
from idemactor.wire.fields import Dialect, Kind, Reader, integer, is_clean, text_reader
from idemactor.wire.rpc_message import bytes_of

_BREAKS_A_HEADER: Final = re.compile("[\x00\r\n\ud800-\udfff]")
"""What ends a header field, or what no text can carry. All else passes: the effect has happened, so that a commit
which is refused for the looks of its outcome invites a second one."""

_MEMBERS: Final = {
    Dialect.JSON: frozenset({"status", "headers", "body", "body_b64"}),
    Dialect.MSGPACK: frozenset({"status", "headers", "body"}),
}

_STATUS: Final = integer(limits.OUTCOME_STATUS_MIN, limits.OUTCOME_STATUS_MAX)

_HEADERS_SCHEMA: Final = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [
            {"type": "string", "minLength": 1, "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"},
            {"type": "string", "pattern": r"^[^\x00\r\n]*$"},
        ],
        "minItems": 2,
        "maxItems": 2,
    },
}
_BODY_SCHEMAS: Final = {"body": {"type": "string"}, "body_b64": {"type": "string", "contentEncoding": "base64"}}

GIVEN_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "status": _STATUS.schema,
        "headers": {"anyOf": [_HEADERS_SCHEMA, {"type": "null"}]},
        "body": {"type": ["string", "null"]},
        "body_b64": {"type": ["string", "null"], "contentEncoding": "base64"},
    },
    "required": ["status"],
    "additionalProperties": False,
    "not": {
        "properties": {"body": {"type": "string"}, "body_b64": {"type": "string"}},
        "required": ["body", "body_b64"],
    },
}
"""The JSON Schema of an outcome in a request over HTTP."""

SHOWN_SCHEMA: Final = {
    "oneOf": [
        *(
            {
                "type": "object",
                "properties": {"status": _STATUS.schema, "headers": _HEADERS_SCHEMA, name: schema},
                "required": ["status", "headers", name],
                "additionalProperties": False,
            }
            for name, schema in _BODY_SCHEMAS.items()
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
    read_body = _json_body if dialect is Dialect.JSON else _msgpack_body

    def read(value: object) -> Outcome:
        if not isinstance(value, dict):
            raise InvalidRequest("it is an object")
        if not known.issuperset(value):
            raise InvalidRequest(f"its members are {', '.join(sorted(known))}")
        if value.get("status") is None:
            raise InvalidRequest("its status is missing")
        headers = value.get("headers")
        pairs = () if headers is None else _header_pairs(headers, text_in)
        return Outcome(read_status(value["status"]), pairs, read_body(value))

    def read_named(value: object) -> Outcome:
        # A caller looks for the member of its own call; the detail says what is wrong inside.
        try:
            return read(value)
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}: {error.detail}", field=name) from None

    return read_named


def _header_pairs(headers: object, text_in: Callable[[object], str | None]) -> tuple[tuple[str, str], ...]:
    if not isinstance(headers, list):
        raise InvalidRequest("its headers are a list of [name, value]")
    pairs: list[tuple[str, str]] = []
    for pair in headers:
        if not isinstance(pair, list) or len(pair) != 2:
            raise InvalidRequest("its headers are a list of [name, value]")
        name, value = map(text_in, pair)
        if not name or not is_clean(name):
            raise InvalidRequest("a header's name is text without control characters")
        if value is None or _BREAKS_A_HEADER.search(value) is not None:
            raise InvalidRequest("a header's value is text without NUL and ends of lines")
        pairs.append((name, value))
    return tuple(pairs)


def _json_body(members: dict[str, Any]) -> bytes:
    text, encoded = members.get("body"), members.get("body_b64")
    if text is not None and encoded is not None:
        raise InvalidRequest("it has body or body_b64, not both")
    try:
        if isinstance(text, str):
            return text.encode()
        if isinstance(encoded, str):
            return binascii.a2b_base64(encoded, strict_mode=True)
    except UnicodeEncodeError:
        raise InvalidRequest("its body holds a lone surrogate") from None
    except ValueError:
        raise InvalidRequest("its body_b64 is not base64 (RFC 4648, section 4, with padding)") from None
    if text is None and encoded is None:
        return b""
    raise InvalidRequest("its body is text, and so is its body_b64")


def _msgpack_body(members: dict[str, Any]) -> bytes:
    body = members.get("body")
    if body is None:
        return b""
    data = bytes_of(body)
    if data is None:
        raise InvalidRequest("its body is bin or text")
    return data


OUTCOME: Final = Kind(GIVEN_SCHEMA, _outcome_reader)
