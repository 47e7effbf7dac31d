"""Dispatched operations and the outbox in the OpenAPI document (contract, 15): schemas, and paths without refusals."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from idemactor.core.delivery import OperationState
from idemactor.errors import Code
from idemactor.wire import fields
from idemactor.wire.contents import BODY_SCHEMAS, HEADERS_SCHEMA
from idemactor.wire.intents import ORDER_KEY

Schema: TypeAlias = dict[str, Any]

_NULL: Final[Schema] = {"type": "null"}
_TEXT: Final[Schema] = {"type": "string"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_TIME: Final[Schema] = {"type": "integer", "minimum": 0, "description": "Milliseconds since the epoch, UTC."}
_ATTEMPT: Final[Schema] = {"type": "integer", "minimum": 0, "description": "0: nobody has tried yet."}
_STATE: Final[Schema] = {"type": "string", "enum": [state.value for state in OperationState]}
_OPERATION_ID: Final[Schema] = {
    "type": "string",
    "format": "uuid",
    "description": "A UUIDv7, the same for every attempt: what the destination gets as Idempotency-Key.",
}
_REPEATED: Final[Schema] = {**_BOOLEAN, "description": "Whether this is the first answer once more."}

EXAMPLE_ID: Final = "01890a5d-ac96-774b-bcce-b302099a8057"


def _or_null(schema: object) -> Schema:
    return {"anyOf": [schema, _NULL]}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _outcome() -> Schema:
    return _or_null({"$ref": "#/components/schemas/Outcome"})


_OPERATION: Final[Schema] = _object(
    {
        "operation_id": _OPERATION_ID,
        "key": fields.KEY.schema,
        "state": _STATE,
        "attempt": _or_null(_ATTEMPT),
        "accepted_at": _or_null(_TIME),
        "next_attempt_at": _or_null(_TIME),
        "lease_expires_at": _or_null(_TIME),
        "deliver_until": _or_null(_TIME),
        "ended_at": _or_null(_TIME),
        "expires_at": _or_null(_TIME),
        "order_key": _or_null(ORDER_KEY.schema),
        "reason": _or_null(_TEXT),
        "outcome": _outcome(),
    }
)

_ENTRY: Final[Schema] = _object(
    {
        "id": {**_TEXT, "description": "The same for every delivery: an operation's id; an event's has a dot in it."},
        "kind": {"type": "string", "enum": ["intent", "event"]},
        "key": fields.KEY.schema,
        "operation_id": _OPERATION_ID,
        "token": {**fields.TOKEN.schema, "description": "What acknowledges this delivery."},
        "attempt": {"type": "integer", "minimum": 1},
        "order_key": _or_null(ORDER_KEY.schema),
        "at": {**_TIME, "description": "When the intent was accepted, or the event committed."},
        "visible_until": {**_TIME, "description": "Until then it is shown to nobody else."},
        "takeover": {**_BOOLEAN, "description": "Whether an earlier delivery may already have had its effect."},
        "content_type": _or_null(_TEXT),
        "headers": HEADERS_SCHEMA,
    }
) | {
    "oneOf": [
        {"properties": {name: schema}, "required": [name], "not": {"required": [other]}}
        for (name, schema), other in zip(BODY_SCHEMAS.items(), reversed(BODY_SCHEMAS), strict=True)
    ]
}

DISPATCH_RECORD: Final[Schema] = {
    **_object(
        {
            "state": _STATE,
            "due_at": _or_null(_TIME),
            "deliver_until": _TIME,
            "order_key": _or_null(ORDER_KEY.schema),
        }
    ),
    "description": "Only of a dispatched record.",
}
"""What a record has beside the members of every other, where it was dispatched."""

SUCCESSES: Final[dict[str, Schema]] = {
    "Dispatched": _object(
        {
            "result": {"const": "accepted"},
            "proceed": {"const": False},
            "operation_id": _OPERATION_ID,
            "state": _STATE,
            "repeated": _REPEATED,
        }
    )
    | {
        "examples": [
            {
                "result": "accepted",
                "proceed": False,
                "operation_id": EXAMPLE_ID,
                "state": "queued",
                "repeated": False,
            }
        ]
    },
}
"""Answers that a batch may have too."""

ALONE: Final[dict[str, Schema]] = {
    "Operation": _OPERATION,
    "OperationFound": _object(
        {
            "result": {"const": "found"},
            "operation_id": _OPERATION_ID,
            "state": _STATE,
            "outcome": _outcome(),
            "operation": {"$ref": "#/components/schemas/Operation"},
        }
    ),
    "Cancelled": _object({"result": {"const": "cancelled"}, "repeated": _REPEATED}),
    "OutboxEntry": _ENTRY,
    "OutboxEntries": _object({"entries": {"type": "array", "items": {"$ref": "#/components/schemas/OutboxEntry"}}}),
    "EventAcknowledged": _object({"result": {"const": "acknowledged"}, "repeated": _REPEATED}),
    "Postponed": _object(
        {"result": {"const": "postponed"}, "due_at": {**_TIME, "description": "When it is shown again."}}
    ),
}
"""Answers that come alone."""

REFUSALS: Final[dict[str, Schema]] = {
    "Uncancellable": _object(
        {"result": {"const": "uncancellable"}, "code": {"const": Code.UNCANCELLABLE.value}, "state": _STATE}
    ),
}

OPERATION_PARAMETER: Final[Schema] = {
    "name": "operation_id",
    "in": "path",
    "required": True,
    "description": "The operation's id, as dispatch answered it.",
    "schema": {"type": "string"},
    "example": EXAMPLE_ID,
}

LOCATION: Final[Schema] = {
    "description": "Where its state is to be had: the path of the operation.",
    "schema": {"type": "string", "format": "uri-reference"},
}

OPERATION_CALLS: Final = {
    "get": ("operation", "How a dispatched operation stands", ("OperationFound",), ()),
    "delete": ("cancel", "Take an operation back of which nothing was sent", ("Cancelled",), ("Uncancellable",)),
}
"""Each method's name, summary, successes and own refusals."""

OUTBOX_CALLS: Final = {
    "poll": ("Fetch what is due, to deal with it", ("OutboxEntries",), ()),
    "ack": (
        "Say that an entry is dealt with",
        ("Committed", "EventAcknowledged"),
        ("Unknown", "Stale"),
    ),
    "nack": (
        "Give an entry back: it is shown again, or it definitely failed",
        ("Postponed", "Committed", "Released"),
        ("Unknown", "Stale", "AlreadyCommitted"),
    ),
}
"""Each call's summary, successes and own refusals."""
