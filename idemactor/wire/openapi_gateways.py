"""What gateways ask, in the OpenAPI document: any method does, so that several stand for all."""

from __future__ import annotations

from typing import Final

from idemactor.wire.fields import REQUEST_ID
from idemactor.wire.openapi_schemas import Schema, ref
from idemactor.wire.problems import MEDIA_TYPE

METHODS: Final = ("get", "put", "post", "delete", "patch")
"""Those that are documented, of all that are taken."""

_STATUS: Final[Schema] = {"type": "string", "pattern": "^[45][0-9]{2}$"}
_REFUSAL: Final[Schema] = {"description": "A refusal.", "content": {MEDIA_TYPE: {"schema": ref("Problem")}}}
_RESULT: Final[Schema] = {"description": "What was decided, in a word.", "schema": {"type": "string"}}
_TOKEN: Final = "The gateway's own bearer token, where Authorization is the sender's."
_PATH: Final = "The path and the query of the request; Traefik and Caddy say X-Forwarded-Uri."
_METHOD: Final = "The method of the request; Traefik and Caddy say X-Forwarded-Method."


def gateway_paths(namespace: Schema) -> Schema:
    """The paths of forward-auth; ``namespace`` is the parameter that all paths with one have."""
    result = _parameter("header", "X-Idemactor-Result", "The word of the first step.", {"type": "string"})
    return {
        "/v1/{namespace}/authorize": _path(
            "authorize",
            "May this request go on? Its key is accepted: one phase, for gateways that can only ask",
            [namespace, *_parameters()],
            {"2XX": _leave(), "4XX": _REFUSAL, "5XX": _REFUSAL},
        ),
        "/v1/{namespace}/verdict": _path(
            "verdict",
            "What the sender of a refused request is told, where the first step could only refuse it",
            [namespace, *_parameters(), {**result, "required": True}],
            {
                "2XX": {"description": "The stored answer, or that it was done before."},
                "4XX": _REFUSAL,
                "5XX": _REFUSAL,
            },
        ),
    }


def _path(name: str, summary: str, parameters: list[Schema], responses: Schema) -> Schema:
    shared = {"summary": summary, "parameters": parameters, "responses": responses}
    return {method: {"operationId": f"{name}_{method}", **shared} for method in METHODS}


def _leave() -> Schema:
    return {
        "description": "With the status of `proceed`, the request goes on; any other success is the stored answer.",
        "headers": {
            "X-Idemactor-Result": _RESULT,
            "Idempotency-Operation-Id": {"description": "For the upstream.", "schema": {"type": "string"}},
            "Idempotency-Takeover": {
                "description": "For the upstream: whether an earlier attempt may already have had its effect.",
                "schema": {"type": "string", "enum": ["true", "false"]},
            },
        },
    }


def _parameters() -> list[Schema]:
    proceed = {"type": "string", "pattern": "^2[0-9]{2}$", "default": "200"}
    deny = {"anyOf": [_STATUS, {"const": "answer"}]}
    return [
        _parameter("query", "source", "The kind of sender.", {"type": "string", "default": "http"}),
        _parameter("query", "proceed", "The status that lets the request through.", proceed),
        _parameter("query", "deny", "The status of refusals; left out: their own, and no success.", deny),
        _parameter("query", "uri", "Last: the path and the query of the request, as sent (Envoy).", {"type": "string"}),
        _parameter("header", "X-Original-Method", _METHOD, {"type": "string"}),
        _parameter("header", "X-Original-URI", _PATH, {"type": "string"}),
        _parameter("header", "X-Idemactor-Request-Id", "The gateway's name for this one request.", REQUEST_ID.schema),
        _parameter("header", "X-Idemactor-Authorization", _TOKEN, {"type": "string"}),
    ]


def _parameter(place: str, name: str, about: str, schema: object) -> Schema:
    return {"name": name, "in": place, "required": False, "description": about, "schema": schema}
