"""Header pairs and bodies of HTTP messages, as members of calls and answers (contract, 5 and 6)."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping
from typing import Final

from idemactor.errors import InvalidRequest
from idemactor.wire.fields import Dialect, is_clean
from idemactor.wire.rpc_message import bytes_of

_BREAKS_A_HEADER: Final = re.compile("[\x00\r\n\ud800-\udfff]")
"""What ends a header field, or what no text can carry. Outcomes and intents have more rules of their own."""

HEADERS_SCHEMA: Final = {
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
"""The JSON Schema of header pairs."""

BODY_SCHEMAS: Final = {"body": {"type": "string"}, "body_b64": {"type": "string", "contentEncoding": "base64"}}
"""The members that a body may be, and the JSON Schema of each."""

GIVEN_BODY_SCHEMAS: Final = {
    "body": {"type": ["string", "null"]},
    "body_b64": {"type": ["string", "null"], "contentEncoding": "base64"},
}
"""The same in a request, where null is as if it were absent."""

ONE_BODY: Final = {
    "properties": {"body": {"type": "string"}, "body_b64": {"type": "string"}},
    "required": ["body", "body_b64"],
}
"""The JSON Schema of what no request may have: both of them."""

BODY_MEMBERS: Final = {
    Dialect.JSON: frozenset({"body", "body_b64"}),
    Dialect.MSGPACK: frozenset({"body"}),
}


def header_pairs(headers: object, text_in: Callable[[object], str | None]) -> tuple[tuple[str, str], ...]:
    """The pairs of a list of [name, value]; null: none.

    Raises:
        InvalidRequest: It is none; the detail follows the name of the member that holds it.
    """
    if headers is None:
        return ()
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


def body_of_members(members: Mapping[object, object], dialect: Dialect) -> bytes:
    """The bytes of ``body`` or ``body_b64``; none of them: no bytes.

    Raises:
        InvalidRequest: As in ``header_pairs``.
    """
    return _json_body(members) if dialect is Dialect.JSON else _msgpack_body(members)


def _json_body(members: Mapping[object, object]) -> bytes:
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


def _msgpack_body(members: Mapping[object, object]) -> bytes:
    body = members.get("body")
    if body is None:
        return b""
    data = bytes_of(body)
    if data is None:
        raise InvalidRequest("its body is bin or text")
    return data
