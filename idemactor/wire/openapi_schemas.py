"""The schemas of the OpenAPI document: requests from the parser's own tables, answers beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from idemactor.core import limits
from idemactor.core.policy import OnDoubt, OnDuplicate, OnFailure, OnLeaseExpiry, OnUnavailable
from idemactor.core.stuck import Why
from idemactor.errors import Code
from idemactor.wire import fields
from idemactor.wire import openapi_dispatch as dispatch
from idemactor.wire.calls import CALLS, EXCLUSIVE, KEY, OUTBOX, TOGETHER
from idemactor.wire.fields import Field
from idemactor.wire.outcomes import SHOWN_SCHEMA
from idemactor.wire.policies import LIMITS
from idemactor.wire.requests import BATCH_OPS
from idemactor.wire.sourced import Rule

Schema: TypeAlias = dict[str, Any]

NULL: Final[Schema] = {"type": "null"}
_TEXT: Final[Schema] = {"type": "string"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_ATTEMPT: Final[Schema] = {"type": "integer", "minimum": 1}
_ATTEMPT_IF_ANY: Final[Schema] = {
    "type": "integer",
    "minimum": 0,
    "description": "0: dispatched, and nobody has tried yet.",
}
_TIME: Final[Schema] = {
    "type": "integer",
    "minimum": 0,
    "description": "Milliseconds since the epoch, UTC.",
}
_OPERATION_ID: Final[Schema] = {
    "type": "string",
    "format": "uuid",
    "description": "A UUIDv7, the same for every attempt.",
}
NAMESPACE: Final[Schema] = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,62}$"}


def ref(name: str) -> Schema:
    """A reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: Schema) -> Schema:
    """What ``schema`` takes, and null."""
    return {"anyOf": [schema, NULL]}


def one_of(names: Iterable[str]) -> Schema:
    """One of several of the document's schemas."""
    refs = [ref(name) for name in names]
    return refs[0] if len(refs) == 1 else {"oneOf": refs}


def _object(properties: Schema, *, optional: Iterable[str] = ()) -> Schema:
    """An object of an answer. It is left open: callers must expect members that come later."""
    left_out = set(optional)
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in left_out],
    }


def _answer(result: str, properties: Schema, *, proceed: bool | None = None) -> Schema:
    words: Schema = {"result": {"const": result}}
    if proceed is not None:
        words["proceed"] = {"const": proceed}
    return _object(words | properties)


_ADDRESSES: Final[Schema] = {"type": "array", "items": _TEXT, "description": "host:port, or unix:path."}
_SHARD_MAP: Final[Schema] = _object(
    {
        "shards": {"type": "integer", "minimum": 1},
        "hash": {"const": "blake2b-64", "description": "How an identity becomes the number of its shard."},
        "tenant": {"type": "string", "description": "The caller's, which is a part of what is hashed."},
        "worker": _COUNT | {"description": "Who gave this answer."},
        "workers": {
            "type": "array",
            "items": _object(
                {
                    "worker": _COUNT,
                    "shards": {"type": "array", "items": _COUNT},
                    "http": _ADDRESSES,
                    "rpc": _ADDRESSES,
                }
            ),
        },
    }
)


# ------------------------------------------------------------------------------------------------------- requests


def request_schema(table: tuple[Field, ...], *, key_in_header: bool = True) -> Schema:
    """The body of a call over HTTP, from the table that the parser reads."""
    known = [field for field in table if not field.rpc_only]
    names = {field.name for field in known}
    schema: Schema = {
        "type": "object",
        "properties": {field.name: _member(field, key_in_header) for field in known},
        "required": [f.name for f in known if f.required and not (key_in_header and f.name == "key")],
        "additionalProperties": False,
    }
    rules: list[Schema] = [{"not": _given(*pair)} for pair in EXCLUSIVE if names.issuperset(pair)]
    rules += [
        {"if": _given(one), "then": _given(other)}
        for pair in TOGETHER
        if names.issuperset(pair)
        for one, other in (pair, pair[::-1])
    ]
    if rules:
        schema["allOf"] = rules
    return schema


def _member(field: Field, key_in_header: bool) -> Schema:
    schema = dict(field.kind.schema)
    optional = not field.required or (key_in_header and field.name == "key")
    # A schema that takes anything takes null too.
    shown = or_null(schema) if optional and schema else schema
    return shown | {"description": field.about}


def _given(*names: str) -> Schema:
    """What has all of these, none of them null."""
    return {"required": list(names), "properties": {name: {"not": NULL} for name in names}}


def _batch_schema() -> Schema:
    return {
        "type": "object",
        "properties": {
            "ops": {
                "type": "array",
                "maxItems": limits.BATCH_OPS_MAX,
                "items": {"oneOf": [_op_schema(op) for op in sorted(BATCH_OPS)]},
            }
        },
        "required": ["ops"],
        "additionalProperties": False,
    }


def _op_schema(op: str) -> Schema:
    schema = request_schema(tuple(field for field in CALLS[op] if field.name != "wait_ms"))
    schema["properties"] = {"op": {"const": op}, "namespace": NAMESPACE, **schema["properties"]}
    schema["required"] = ["op", "namespace", *schema["required"]]
    # No header brings the key of a call in a batch.
    ways = [_given("key")] + ([_given("source", "request")] if "source" in schema["properties"] else [])
    schema.setdefault("allOf", []).append({"anyOf": ways})
    return schema


# -------------------------------------------------------------------------------------------------------- answers

_REPEATED: Final[Schema] = {**_BOOLEAN, "description": "Whether this is the first answer once more."}
_TAKEOVER: Final[Schema] = {
    **_BOOLEAN,
    "description": "Whether an earlier attempt may already have had its effect.",
}
_DONE_BEFORE: Final[Schema] = {"operation_id": _OPERATION_ID, "committed_at": _TIME, "expires_at": _TIME}
_HELD: Final[Schema] = {"holder": or_null(_TEXT), "reserved_at": _TIME, "lease_expires_at": _TIME}

_LISTED_RECORD: Final[Schema] = {
    "key": fields.KEY.schema,
    "state": fields.STATE.schema,
    "attempt": _ATTEMPT_IF_ANY,
    "token": {**or_null(dict(fields.TOKEN.schema)), "description": "Shown to operators only."},
    "operation_id": _OPERATION_ID,
    "fingerprint": or_null(_TEXT),
    "holder": or_null(_TEXT),
    "first_seen_at": _TIME,
    "reserved_at": _TIME,
    "lease_expires_at": or_null(_TIME),
    "committed_at": or_null(_TIME),
    "expires_at": or_null(_TIME),
    "contested": _BOOLEAN,
    "reason": or_null(_TEXT),
    "dispatch": dispatch.DISPATCH_RECORD,
}

_SUCCESSES: Final[dict[str, Schema]] = {
    "Reserved": _answer(
        "reserved",
        {
            "key": fields.KEY.schema,
            "token": fields.TOKEN.schema,
            "attempt": _ATTEMPT,
            "operation_id": _OPERATION_ID,
            "reserved_at": _TIME,
            "lease_expires_at": _TIME,
            "takeover": _TAKEOVER,
            "repeated": _REPEATED,
        },
        proceed=True,
    ),
    "Accepted": _answer(
        "accepted",
        {
            "operation_id": _OPERATION_ID,
            "attempt": _ATTEMPT,
            "takeover": _TAKEOVER,
            "repeated": _REPEATED,
            "expires_at": _TIME,
        },
        proceed=True,
    ),
    "Completed": _answer("completed", {**_DONE_BEFORE, "outcome": or_null(ref("Outcome"))}, proceed=False),
    "Committed": _answer("committed", {"expires_at": _TIME, "repeated": _REPEATED}),
    "Released": _answer("released", {"repeated": _REPEATED}),
    "Extended": _answer("extended", {"lease_expires_at": _TIME}),
    "Doubted": _answer("in_doubt", {"repeated": _REPEATED}),
    "ResolvedCommitted": _answer("committed", {"repeated": _REPEATED}),
    "Found": _answer("found", {"record": ref("Record")}),
    "Forgotten": _answer("forgotten", {}),
    "Acknowledged": _answer("acknowledged", {}),
    **dispatch.SUCCESSES,
}


def _refused(
    result: str | None, code: Code, properties: Schema | None = None, *, optional: Iterable[str] = ()
) -> Schema:
    words: Schema = {"result": {"const": result}} if result is not None else {}
    return _object({**words, "code": {"const": code.value}, **(properties or {})}, optional=optional)


_REFUSALS: Final[dict[str, Schema]] = {
    "InFlight": _refused(
        "in_flight",
        Code.IN_FLIGHT,
        {
            "attempt": _ATTEMPT_IF_ANY,
            **_HELD,
            "lease_expires_at": {**or_null(_TIME), "description": "Null: dispatched, and waiting to be delivered."},
            "retry_after_ms": {"type": "integer", "minimum": 1},
        },
    ),
    "Duplicate": _refused("completed", Code.DUPLICATE, _DONE_BEFORE),
    "InDoubt": _refused(
        "in_doubt",
        Code.IN_DOUBT,
        {"attempt": _ATTEMPT, "operation_id": _OPERATION_ID, **_HELD, "reason": or_null(_TEXT)},
    ),
    "Withdrawn": _refused("released", Code.RELEASED),
    "Stale": _refused("stale", Code.STALE_TOKEN, {"attempt": or_null(_ATTEMPT_IF_ANY)}),
    "AlreadyCommitted": _refused(
        "already_committed", Code.ALREADY_COMMITTED, {"committed_at": _TIME, "expires_at": _TIME}
    ),
    "Unknown": _refused("unknown", Code.UNKNOWN_KEY),
    "Mismatch": _refused("mismatch", Code.MISMATCH),
    "NothingToForget": _refused(None, Code.UNKNOWN_KEY),
    "Unsettled": _refused(None, Code.UNSETTLED),
    "QuotaExceeded": _refused(None, Code.QUOTA_EXCEEDED),
    "Overloaded": _refused(None, Code.OVERLOADED),
    "Unavailable": _refused(None, Code.UNAVAILABLE),
    "InvalidRequest": _refused(
        None,
        Code.INVALID_REQUEST,
        {"field": {**or_null(_TEXT), "description": "The member at fault."}},
        optional=("field",),
    ),
    "TooLarge": _refused(None, Code.TOO_LARGE),
    "UnsupportedMediaType": _refused(None, Code.UNSUPPORTED_MEDIA_TYPE),
    "Unauthenticated": _refused(None, Code.UNAUTHENTICATED),
    "BadSignature": _refused(
        None, Code.BAD_SIGNATURE, {"field": {**_TEXT, "description": "Where the signature is, or should be."}}
    ),
    "Forbidden": _refused(None, Code.FORBIDDEN),
    "UnknownNamespace": _refused(None, Code.UNKNOWN_NAMESPACE),
    "NotFound": _refused(None, Code.NOT_FOUND),
    **dispatch.REFUSALS,
}

_PROBLEM: Final[Schema] = _object(
    {
        "type": {"type": "string", "format": "uri-reference"},
        "title": _TEXT,
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": _TEXT,
        "code": {"type": "string", "enum": [code.value for code in Code]},
    }
) | {"description": "Problem details (RFC 9457)."}

_INCIDENT: Final[Schema] = _object(
    {
        "id": _TEXT,
        "key": fields.KEY.schema,
        "operation_id": _OPERATION_ID,
        "token": fields.TOKEN.schema,
        "present_token": or_null(dict(fields.TOKEN.schema)),
        "at": _TIME,
        "outcome": or_null(ref("Outcome")),
    }
)

_STUCK: Final[Schema] = _object(
    {
        "why": {"type": "string", "enum": [why.value for why in Why]},
        "namespace": NAMESPACE,
        "key": fields.KEY.schema,
        "operation_id": _OPERATION_ID,
        "attempt": or_null(_ATTEMPT_IF_ANY),
        "token": {**fields.TOKEN.schema, "description": "Of an incident the one that came too late."},
        "holder": or_null(_TEXT),
        "since": _TIME,
        "for_ms": _COUNT,
        "lease_expires_at": or_null(_TIME),
        "waiting": {**_COUNT, "description": "How many callers wait for the key."},
        "contested": _BOOLEAN,
        "reason": {**or_null(_TEXT), "description": "What its holder said, or the destination's latest answer."},
        "destination": or_null(_TEXT),
        "due_at": or_null(_TIME),
        "incident": {**or_null(_TEXT), "description": "The id of an incident, as listed."},
        "present_token": or_null(dict(fields.TOKEN.schema)),
    }
)
_STUCK_LIST: Final[Schema] = _object(
    {
        "stuck": {"type": "array", "items": ref("Stuck"), "description": "The longest first."},
        "unfetched": {
            "type": "array",
            "items": _object({"namespace": NAMESPACE, "entries": _COUNT, "since": _TIME}),
            "description": "Events that nobody has fetched.",
        },
        "more": {**_BOOLEAN, "description": "Whether there is, or may be, more of it."},
        "silent_shards": {"type": "array", "items": _COUNT, "description": "Those that did not answer in time."},
    }
)

_POINTERS: Final[Schema] = {"type": "array", "items": _TEXT}


def _words(options: Iterable[str]) -> Schema:
    return {"type": "string", "enum": [str(option) for option in options]}


_POLICY: Final[Schema] = _object(
    {
        "namespace": NAMESPACE,
        "lease_ms": _COUNT,
        "lease_total_max_ms": _COUNT,
        "ttl_ms": _COUNT,
        "unresolved_ttl_ms": {
            **_COUNT,
            "description": "How long a lapsed attempt is kept for the next one, under on_lease_expiry retry."
            " What is held, doubted or dispatched and unresolved is never deleted by time:"
            " it stays until somebody resolves it.",
        },
        "on_lease_expiry": _words(OnLeaseExpiry),
        "on_doubt": _words(OnDoubt),
        "on_duplicate": _words(OnDuplicate),
        "on_unavailable": _words(OnUnavailable),
        "unavailable_after_ms": _COUNT,
        "outcome_max_bytes": _COUNT,
        "records_max": _COUNT,
        "fingerprint": _object({"required": _BOOLEAN, "include": _POINTERS, "exclude": _POINTERS, "rule": _TEXT}),
        "dispatch": _object(
            {
                "pushed": _BOOLEAN,
                "downstream_dedups": _BOOLEAN,
                "horizon_ms": _COUNT,
                "intent_max_bytes": _COUNT,
                "on_failure": _words(OnFailure),
            }
        ),
        "limits": _object(dict.fromkeys(LIMITS, _COUNT)),
    }
)

_KEY: Final[Schema] = _answer(
    "key",
    {
        "key": fields.KEY.schema,
        "fingerprint": fields.FINGERPRINT.schema,
        "rule": {**_words(Rule), "description": "Where the key was found."},
        "source": fields.SOURCE.schema,
    },
)

_IN_BATCH: Final = (
    *(name for name in _SUCCESSES if name not in ("Forgotten", "Acknowledged")),
    *(name for name, schema in _REFUSALS.items() if "result" in schema["properties"]),
)


def code_of(refusal: str) -> Code:
    """The code of the refusal whose schema has this name."""
    return Code(_REFUSALS[refusal]["properties"]["code"]["const"])


def _page(name: str, item: str) -> Schema:
    return _object({name: {"type": "array", "items": ref(item)}, "next": or_null(_TEXT)})


def components() -> dict[str, Schema]:
    """Every schema of the document, by name."""
    error = _object(
        {"code": {"type": "string", "enum": [code.value for code in Code]}, "detail": _TEXT, "field": _TEXT},
        optional=("field",),
    )
    result = {"anyOf": [*map(ref, _IN_BATCH), ref("BatchError")]}
    return {
        **{f"{op.capitalize()}Request": request_schema(table) for op, table in CALLS.items()},
        "BatchRequest": _batch_schema(),
        "KeyRequest": request_schema(KEY),
        **{f"{op.capitalize()}Request": request_schema(table, key_in_header=False) for op, table in OUTBOX.items()},
        "Key": _KEY,
        "Outcome": SHOWN_SCHEMA,
        "Record": _object({**_LISTED_RECORD, "outcome": or_null(ref("Outcome"))}, optional=("dispatch",)),
        "ListedRecord": _object(_LISTED_RECORD, optional=("dispatch",)),
        "Incident": _INCIDENT,
        "Records": _page("records", "ListedRecord"),
        "Incidents": _page("incidents", "Incident"),
        "Stuck": _STUCK,
        "StuckList": _STUCK_LIST,
        "Policy": _POLICY,
        "ShardMap": _SHARD_MAP,
        "Batch": _object({"results": {"type": "array", "items": result}}),
        "BatchError": error,
        **_SUCCESSES,
        **dispatch.ALONE,
        "Problem": _PROBLEM,
        **_REFUSALS,
    }
