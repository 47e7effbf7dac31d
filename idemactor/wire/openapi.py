"""The OpenAPI document, made from the tables that the parser reads (contract, 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from idemactor import __version__
from idemactor.core.limits import KEY_CHARS_MAX
from idemactor.wire.answers import TAKEN_ON
from idemactor.wire.calls import CANCEL, INCIDENTS, OPERATION, RECORDS, STUCK
from idemactor.wire.fields import Field
from idemactor.wire.openapi_dispatch import LOCATION, OPERATION_CALLS, OPERATION_PARAMETER, OUTBOX_CALLS
from idemactor.wire.openapi_gateways import gateway_paths
from idemactor.wire.openapi_schemas import NAMESPACE, Schema, code_of, components, one_of, ref
from idemactor.wire.problems import MEDIA_TYPE, http_status_of_code
from idemactor.wire.requests import OPERATOR_OPS

_JSON: Final = "application/json"

_NOT_NOW: Final = ("Overloaded", "Unavailable")
_ANY_CALL: Final = ("InvalidRequest", "Unauthenticated", "Forbidden", *_NOT_NOW)
_WITH_BODY: Final = ("TooLarge", "UnsupportedMediaType")
_WITH_NAMESPACE: Final = ("UnknownNamespace",)

_ACQUIRING: Final = ("InFlight", "Duplicate", "InDoubt", "Withdrawn", "Mismatch", "QuotaExceeded", "BadSignature")

_COMMANDS: Final[Mapping[str, tuple[str, Mapping[int, tuple[str, ...]], tuple[str, ...]]]] = {
    "reserve": (
        "Ask to be the one who goes on",
        {201: ("Reserved",), 200: ("Completed",)},
        _ACQUIRING,
    ),
    "accept": ("Reserve and commit in one step", {201: ("Accepted",), 200: ("Completed",)}, _ACQUIRING),
    "dispatch": (
        "Keep an intent and see to it that it is delivered",
        {202: ("Dispatched",), 200: ("Completed",)},
        ("InFlight", "Duplicate", "InDoubt", "Mismatch", "QuotaExceeded"),
    ),
    "commit": ("The effect happened", {200: ("Committed",)}, ("Unknown", "Stale")),
    "release": (
        "The effect did not happen: free the key",
        {200: ("Released",)},
        ("Unknown", "Stale", "AlreadyCommitted"),
    ),
    "extend": (
        "The holder is still at work",
        {200: ("Extended",)},
        ("Unknown", "Stale", "AlreadyCommitted", "InDoubt"),
    ),
    "doubt": (
        "Nobody knows whether the effect happened",
        {200: ("Doubted",)},
        ("Unknown", "Stale", "AlreadyCommitted"),
    ),
    "resolve": (
        "Say what became of an operation in doubt",
        {200: ("ResolvedCommitted", "Released")},
        ("Unknown", "Stale", "AlreadyCommitted", "InFlight"),
    ),
    "get": ("Look at a key", {200: ("Found",)}, ("Unknown",)),
    "forget": ("Drop everything about a key", {200: ("Forgotten",)}, ("NothingToForget", "Unsettled")),
}
"""Each command's summary, its successes by status, and the refusals that are its own."""

_PROCEEDS: Final = frozenset({"reserve", "accept", "dispatch"})

_NAMESPACE_PARAMETER: Final[Schema] = {
    "name": "namespace",
    "in": "path",
    "required": True,
    "description": "A namespace of the server's configuration.",
    "schema": NAMESPACE,
}
_KEY_PARAMETER: Final[Schema] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": (
        "The key, instead of the body's: an RFC 8941 string in quotes, or bare visible ASCII without quotes,"
        " commas and semicolons. One that differs from the body's is refused."
    ),
    # Quotes, and a backslash before each quote and backslash of the key itself.
    "schema": {"type": "string", "minLength": 1, "maxLength": 2 * KEY_CHARS_MAX + 2},
}
_INCIDENT_PARAMETER: Final[Schema] = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The incident's id, as listed.",
    "schema": {"type": "string"},
}
_RETRY_AFTER: Final[Schema] = {
    "description": "Whole seconds; at most 5.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 5},
}

_CHALLENGE: Final[Schema] = {
    "description": "How to authenticate (RFC 9110, section 11.6.1).",
    "schema": {"type": "string"},
}

_ALLOW: Final[Schema] = {
    "description": "The methods that the path has (RFC 9110, section 10.2.1).",
    "required": True,
    "schema": {"type": "string"},
}
_WRONG_METHOD: Final = "MethodNotAllowed"


def document(version: str = __version__) -> dict[str, object]:
    """The whole document, OpenAPI 3.1; it names no host: the server is the one that gave it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "idemactor",
            "version": version,
            "summary": "Of any number of concurrent callers with one key, exactly one at a time is told to go on.",
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {}],
        "paths": {
            **{f"/v1/{{namespace}}/{op}": {"post": _command(op)} for op in _COMMANDS},
            **_dispatch_paths(),
            **_operator_paths(),
            "/v1/{namespace}/key": {"post": _key()},
            "/v1/{namespace}/policy": {"get": _policy()},
            **gateway_paths(_NAMESPACE_PARAMETER),
            "/v1/batch": {"post": _batch()},
            "/v1/shards": {"get": _shards()},
            "/v1/stuck": {"get": _stuck()},
            **_open_paths(),
        },
        "components": {
            "schemas": components(),
            "responses": {_WRONG_METHOD: _wrong_method()},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed wherever the server has credentials configured.",
                }
            },
        },
    }


def _command(op: str) -> Schema:
    summary, successes, refusals = _COMMANDS[op]
    return {
        "operationId": op,
        "summary": summary + (" (operators)" if op in OPERATOR_OPS else ""),
        "parameters": [_NAMESPACE_PARAMETER, _KEY_PARAMETER],
        "requestBody": _body(f"{op.capitalize()}Request"),
        "responses": {
            **_successes(successes),
            **_problems((*refusals, *_ANY_CALL, *_WITH_BODY, *_WITH_NAMESPACE), proceeds=op in _PROCEEDS),
        },
    }


def _dispatch_paths() -> Schema:
    """Dispatched operations, and the outbox of services that fetch their work."""
    refusals = (*_ANY_CALL, *_WITH_NAMESPACE)
    operation: Schema = {
        method: {
            "operationId": name,
            "summary": summary,
            "parameters": [
                _NAMESPACE_PARAMETER,
                OPERATION_PARAMETER,
                *(_filter(field) for field in (OPERATION if method == "get" else CANCEL) if not field.required),
            ],
            "responses": {**_successes({200: told}), **_problems((*own, *refusals, "NotFound"))},
        }
        for method, (name, summary, told, own) in OPERATION_CALLS.items()
    }
    outbox: Schema = {
        f"/v1/{{namespace}}/outbox/{op}": {
            "post": {
                "operationId": f"outbox_{op}",
                "summary": summary,
                "parameters": [_NAMESPACE_PARAMETER],
                "requestBody": _body(f"{op.capitalize()}Request"),
                "responses": {**_successes({200: told}), **_problems((*own, *refusals, *_WITH_BODY))},
            }
        }
        for op, (summary, told, own) in OUTBOX_CALLS.items()
    }
    return {"/v1/{namespace}/operations/{operation_id}": operation, **outbox}


def _operator_paths() -> Schema:
    refusals = (*_ANY_CALL, *_WITH_NAMESPACE)
    listings: Schema = {
        name: {
            "get": {
                "operationId": name,
                "summary": f"List {name} (operators)",
                "parameters": [_NAMESPACE_PARAMETER, *map(_filter, table)],
                "responses": {**_successes({200: (name.capitalize(),)}), **_problems(refusals)},
            }
        }
        for name, table in (("records", RECORDS), ("incidents", INCIDENTS))
    }
    acknowledge = {
        "operationId": "acknowledge",
        "summary": "Say that an incident was seen: it need not be kept (operators)",
        "parameters": [_NAMESPACE_PARAMETER, _INCIDENT_PARAMETER],
        "responses": {**_successes({200: ("Acknowledged",)}), **_problems((*refusals, "NotFound"))},
    }
    return {
        **{f"/v1/{{namespace}}/{name}": item for name, item in listings.items()},
        "/v1/{namespace}/incidents/{id}/acknowledge": {"post": acknowledge},
    }


def _key() -> Schema:
    return {
        "operationId": "key",
        "summary": "The key that a reserve with the same source and request would have: a dry run",
        "parameters": [_NAMESPACE_PARAMETER],
        "requestBody": _body("KeyRequest"),
        "responses": {
            **_successes({200: ("Key",)}),
            **_problems(("BadSignature", *_ANY_CALL, *_WITH_BODY, *_WITH_NAMESPACE)),
        },
    }


def _policy() -> Schema:
    return {
        "operationId": "policy",
        "summary": "The published settings of a namespace, and the server's limits",
        "parameters": [_NAMESPACE_PARAMETER],
        "responses": {**_successes({200: ("Policy",)}), **_problems((*_ANY_CALL, *_WITH_NAMESPACE))},
    }


def _batch() -> Schema:
    return {
        "operationId": "batch",
        "summary": "Many commands at once, each for itself; their answers come in the same order",
        "requestBody": _body("BatchRequest"),
        "responses": {**_successes({200: ("Batch",)}), **_problems((*_ANY_CALL, *_WITH_BODY))},
    }


def _shards() -> Schema:
    return {
        "operationId": "shards",
        "summary": "Which of the server's processes owns which shard, and where it listens",
        "responses": {**_successes({200: ("ShardMap",)}), **_problems(_ANY_CALL)},
    }


def _stuck() -> Schema:
    return {
        "operationId": "stuck",
        "summary": "What is stuck, for how long, and who holds it, over all namespaces of the token (operators)",
        "parameters": [*map(_filter, STUCK)],
        "responses": {**_successes({200: ("StuckList",)}), **_problems(_ANY_CALL)},
    }


def _open_paths() -> Schema:
    """What needs no namespace. All but the metrics are open to everyone."""
    text = {"text/plain": {"schema": {"type": "string"}}}
    anything = {_JSON: {"schema": {"type": "object"}}}
    return {
        "/livez": {"get": _plain("livez", "Whether the process is alive", _status("ok"), open_to_all=True)},
        "/readyz": {
            "get": _plain("readyz", "Whether every shard can answer", _status("ready"), _NOT_NOW, open_to_all=True)
        },
        "/metrics": {"get": _plain("metrics", "Metrics for Prometheus", text, ("Unauthenticated", "Forbidden"))},
        "/openapi.json": {"get": _plain("openapi", "This document", anything, open_to_all=True)},
    }


def _plain(
    name: str, summary: str, content: Schema, refusals: tuple[str, ...] = (), *, open_to_all: bool = False
) -> Schema:
    operation: Schema = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}, **_problems(refusals)},
    }
    if open_to_all:
        operation["security"] = []
    return operation


def _status(word: str) -> Schema:
    said = {"type": "object", "properties": {"status": {"const": word}}, "required": ["status"]}
    return {_JSON: {"schema": said}}


def _body(schema: str) -> Schema:
    return {"required": True, "content": {_JSON: {"schema": ref(schema)}}}


def _filter(field: Field) -> Schema:
    return {
        "name": field.name,
        "in": "query",
        "required": False,
        "description": field.about,
        "schema": dict(field.kind.schema),
    }


def _successes(by_status: Mapping[int, tuple[str, ...]]) -> Schema:
    return {
        str(status): {
            "description": " or ".join(names),
            "content": {_JSON: {"schema": one_of(names)}},
            **({"headers": {"Location": LOCATION}} if status == TAKEN_ON else {}),
        }
        for status, names in by_status.items()
    }


def _problems(names: Iterable[str], *, proceeds: bool = False) -> Schema:
    """The refusals of a call by their status. Those of reserve and accept say ``"proceed": false``, all of them.

    A path gives its 405 to whatever method it has not: it stands with those that it has. The default stands for what no
    call is about: headers too long, a fault of the server.
    """
    by_status: dict[int, list[str]] = {}
    for name in names:
        by_status.setdefault(http_status_of_code(code_of(name)), []).append(name)
    told = {str(status): _problem(by_status[status], proceeds=proceeds) for status in sorted(by_status)}
    told["405"] = {"$ref": f"#/components/responses/{_WRONG_METHOD}"}
    return told | {"default": {"description": "Any other refusal", "content": {MEDIA_TYPE: {"schema": ref("Problem")}}}}


def _wrong_method() -> Schema:
    return {
        "description": "The path has no such method; OPTIONS is a method like any other",
        "headers": {"Allow": _ALLOW},
        "content": {MEDIA_TYPE: {"schema": ref("Problem")}},
    }


def _problem(names: list[str], *, proceeds: bool) -> Schema:
    parts = [ref("Problem"), one_of(names)]
    if proceeds:
        parts.append({"properties": {"proceed": {"const": False}}, "required": ["proceed"]})
    response: Schema = {
        "description": " or ".join(names),
        "content": {MEDIA_TYPE: {"schema": {"allOf": parts}}},
    }
    if {"InFlight", "Overloaded"}.intersection(names):
        response["headers"] = {"Retry-After": _RETRY_AFTER}
    elif "Unauthenticated" in names:
        response["headers"] = {"WWW-Authenticate": _CHALLENGE}
    return response
