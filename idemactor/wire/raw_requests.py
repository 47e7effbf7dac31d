"""The request of a sender as a member of a call (contract, 5 and 9)."""

from __future__ import annotations

from typing import Final

from idemactor.errors import InvalidRequest
from idemactor.wire.contents import (
    BODY_MEMBERS,
    GIVEN_BODY_SCHEMAS,
    HEADERS_SCHEMA,
    ONE_BODY,
    body_of_members,
    header_pairs,
)
from idemactor.wire.fields import Dialect, Kind, Reader, text, text_reader
from idemactor.wire.sourced import RawRequest

METHOD_CHARS_MAX: Final = 64
PATH_CHARS_MAX: Final = 16_384
"""As much as the head of any request may hold."""

_METHOD: Final = text(METHOD_CHARS_MAX, chars_min=1)
_PATH: Final = text(PATH_CHARS_MAX, chars_min=1)
_MEMBERS: Final = {dialect: names | {"method", "path", "headers"} for dialect, names in BODY_MEMBERS.items()}

_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "method": _METHOD.schema,
        "path": {**_PATH.schema, "description": "As it was sent, the query included."},
        "headers": {"anyOf": [HEADERS_SCHEMA, {"type": "null"}]},
        **GIVEN_BODY_SCHEMAS,
    },
    "required": ["method", "path"],
    "additionalProperties": False,
    "not": ONE_BODY,
}


def _request_reader(name: str, dialect: Dialect) -> Reader:
    known = _MEMBERS[dialect]
    read_method, read_path = _METHOD.reader("method", dialect), _PATH.reader("path", dialect)
    text_in = text_reader(dialect)

    def read(value: object) -> RawRequest:
        if not isinstance(value, dict):
            raise InvalidRequest("it is an object")
        if not known.issuperset(value):
            raise InvalidRequest(f"its members are {', '.join(sorted(known))}")
        for needed in ("method", "path"):
            if value.get(needed) is None:
                raise InvalidRequest(f"its {needed} is missing")
        return RawRequest(
            method=read_method(value["method"]),
            path=read_path(value["path"]),
            headers=header_pairs(value.get("headers"), text_in),
            body=body_of_members(value, dialect),
        )

    def read_named(value: object) -> RawRequest:
        # A caller looks for the member of its own call; the detail says what is wrong inside.
        try:
            return read(value)
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}: {error.detail}", field=name) from None

    return read_named


REQUEST: Final = Kind(_SCHEMA, _request_reader)
