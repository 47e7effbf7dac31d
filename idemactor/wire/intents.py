"""Intents and events as members of calls, and the order that they keep (contract, 15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from idemactor.core import limits
from idemactor.core.commands import Command, Dispatch
from idemactor.core.delivery import Intent, NewEvent
from idemactor.core.intent_headers import check_intent_headers
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.wire.contents import (
    BODY_MEMBERS,
    GIVEN_BODY_SCHEMAS,
    ONE_BODY,
    body_of_members,
    header_pairs,
)
from idemactor.wire.fields import Dialect, Kind, Reader, text, text_reader

Pairs = tuple[tuple[str, str], ...]

_CONTENT_TYPE: Final = text(limits.NAME_CHARS_MAX * 4, chars_min=1)
ORDER_KEY: Final = text(limits.ORDER_KEY_CHARS_MAX, chars_min=1)

_INTENT: Final = {dialect: names | {"content_type", "headers"} for dialect, names in BODY_MEMBERS.items()}
_EVENT: Final = {dialect: names | {"order_key"} for dialect, names in _INTENT.items()}

_NAME_PATTERN: Final = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
_VALUE_PATTERN: Final = r"^(?:[^\x00-\x20\x7f-\x9f](?:[^\x00-\x08\x0a-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\x9f])?)?$"
_VALUE: Final = {"type": "string", "pattern": _VALUE_PATTERN}
_HEADERS_SCHEMA: Final = {
    "anyOf": [
        {
            "type": "array",
            "items": {
                "type": "array",
                "prefixItems": [{"type": "string", "pattern": _NAME_PATTERN}, _VALUE],
                "minItems": 2,
                "maxItems": 2,
            },
            "maxItems": limits.INTENT_HEADERS_MAX,
        },
        {
            "type": "object",
            "propertyNames": {"pattern": _NAME_PATTERN},
            "additionalProperties": _VALUE,
            "maxProperties": limits.INTENT_HEADERS_MAX,
        },
        {"type": "null"},
    ],
    "description": "Name and value pairs, or an object of them; none of the connection, none that the relay sets.",
}
_CONTENT_SCHEMAS: Final = {
    "content_type": {
        "anyOf": [dict(_CONTENT_TYPE.schema) | {"pattern": _VALUE_PATTERN}, {"type": "null"}],
    },
    "headers": _HEADERS_SCHEMA,
    **GIVEN_BODY_SCHEMAS,
}
INTENT_SCHEMA: Final = {
    "type": "object",
    "properties": _CONTENT_SCHEMAS,
    "additionalProperties": False,
    "not": ONE_BODY,
}
"""The JSON Schema of an intent in a request over HTTP."""

_EVENTS_SCHEMA: Final = {
    "type": "array",
    "maxItems": limits.EVENTS_PER_COMMIT_MAX,
    "items": {
        "type": "object",
        "properties": _CONTENT_SCHEMAS | {"order_key": {"anyOf": [ORDER_KEY.schema, {"type": "null"}]}},
        "additionalProperties": False,
        "not": ONE_BODY,
    },
}


def check_intent_size(intent: Intent, bytes_max: int) -> None:
    """Accept an intent of at most ``bytes_max`` bytes, as ``Intent.size`` counts them.

    Raises:
        RequestError: TOO_LARGE.
    """
    if intent.size() > bytes_max:
        raise RequestError(Code.TOO_LARGE, f"an intent has at most {bytes_max} bytes in this namespace", field="intent")


class _Content:
    """Reads what an intent and an event have in common."""

    def __init__(self, known: frozenset[str], dialect: Dialect) -> None:
        self._known = known
        self._dialect = dialect
        self._text_in = text_reader(dialect)
        self._read_type = _CONTENT_TYPE.reader("content_type", dialect)

    def read(self, value: object, name: str) -> tuple[str, bytes, Pairs]:
        if not isinstance(value, dict):
            raise InvalidRequest("it is an object")
        if not self._known.issuperset(value):
            raise InvalidRequest(f"its members are {', '.join(sorted(self._known))}")
        given = value.get("content_type")
        content_type: str = "" if given is None else self._read_type(given)
        headers = self._headers(value.get("headers"))
        check_intent_headers(content_type, headers, field=name)
        return content_type, body_of_members(value, self._dialect), headers

    def _headers(self, value: object) -> Pairs:
        """Pairs, or an object of them."""
        return header_pairs([[*item] for item in value.items()] if isinstance(value, dict) else value, self._text_in)


def _named(name: str, error: InvalidRequest) -> InvalidRequest:
    """A caller looks for the member of its own call; the detail says what is wrong inside."""
    field = error.field if error.field is not None and error.field.startswith(name) else name
    return InvalidRequest(f"{field}: {error.detail}", field=field)


def _intent_reader(name: str, dialect: Dialect) -> Reader:
    content = _Content(_INTENT[dialect], dialect)

    def read(value: object) -> Intent:
        try:
            return Intent(*content.read(value, name))
        except InvalidRequest as error:
            raise _named(name, error) from None

    return read


def _events_reader(name: str, dialect: Dialect) -> Reader:
    content = _Content(_EVENT[dialect], dialect)
    read_order_key = ORDER_KEY.reader("order_key", dialect)

    def read_one(value: object, name: str) -> NewEvent:
        parts = content.read(value, name)
        order_key = value.get("order_key") if isinstance(value, dict) else None
        return NewEvent(*parts, None if order_key is None else read_order_key(order_key))

    def read(value: object) -> tuple[NewEvent, ...]:
        if not isinstance(value, list) or len(value) > limits.EVENTS_PER_COMMIT_MAX:
            raise InvalidRequest(f"{name} is an array of at most {limits.EVENTS_PER_COMMIT_MAX} events", field=name)
        found: list[NewEvent] = []
        for number, one in enumerate(value):
            place = f"{name}.{number}"
            try:
                found.append(read_one(one, place))
            except InvalidRequest as error:
                raise _named(place, error) from None
        _check_events_size(name, found)
        return tuple(found)

    return read


def _check_events_size(name: str, events: list[NewEvent]) -> None:
    # Not as with an outcome, which is cut: an event that is lost is lost for somebody else.
    if sum(Intent(e.content_type, e.body, e.headers).size() for e in events) > limits.EVENTS_BYTES_MAX:
        detail = f"the events of a commit have at most {limits.EVENTS_BYTES_MAX} bytes together"
        raise RequestError(Code.TOO_LARGE, detail, field=name)


INTENT: Final = Kind(INTENT_SCHEMA, _intent_reader)
EVENTS: Final = Kind(_EVENTS_SCHEMA, _events_reader)


def out_of_line(commands: Sequence[Command | None]) -> dict[int, InvalidRequest]:
    """What of a batch is refused because an earlier call of it has the same ``order_key``, by its place in the batch.

    The calls of a batch are accepted side by side, shard by shard: nobody could say which of the two came first.
    """
    seen: set[tuple[str, str, str]] = set()
    refused: dict[int, InvalidRequest] = {}
    for place, command in enumerate(commands):
        if isinstance(command, Dispatch) and command.order_key is not None:
            line = (command.identity.tenant, command.identity.namespace, command.order_key)
            if line in seen:
                detail = "an earlier call of this batch has the same order_key: the two could be accepted in any order"
                refused[place] = InvalidRequest(detail, field="order_key")
            seen.add(line)
    return refused
