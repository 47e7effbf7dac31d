"""The OpenAPI document: it is valid, it has every path, and what the doors really take and give fits it."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # It ships no types.
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from idemactor import __version__
from idemactor.core.delivery import Event, Intent, NewEvent
from idemactor.core.fingerprint import Fingerprint, FingerprintRule
from idemactor.core.policy import Policy
from idemactor.core.queries import IncidentsPage, RecordsPage, TakenEvent, TakenIntent
from idemactor.errors import Code, InvalidRequest
from idemactor.wire.answers import body_of, detail_of, http_status_of_code, policy_body, problem, refusal_of
from idemactor.wire.calls import CALLS, KEY, OUTBOX
from idemactor.wire.listings import incidents_walk, records_walk
from idemactor.wire.openapi import document
from idemactor.wire.openapi_gateways import METHODS
from idemactor.wire.outbox import poll_body
from idemactor.wire.requests import BATCH_OPS, COMMAND_OPS, Dialect, Members, Scope, command_from, members_of
from idemactor.wire.sourced import Resolved, Rule, key_body
from tests.wire.samples import COMMITTED, INCIDENT, OPERATION, SAMPLES, WHO, Sample

DOCUMENT: dict[str, Any] = json.loads(json.dumps(document()))
_URI = "urn:test:document"
_REGISTRY: Registry[Any] = Registry().with_resource(_URI, DRAFT202012.create_resource(DOCUMENT))

RESOLVED = Resolved("k", Fingerprint("v1:00", "v1"), Rule.SOURCE, "http", "trade", None, 1)
SCOPE = Scope("acme", "trade", Policy(), operator=True, resolver=lambda _source, _request: RESOLVED)
PROBLEM = "application/problem+json"
JSON = "application/json"


def validator(*path: str) -> jsonschema.Draft202012Validator:
    """A validator for the schema at this place of the document."""
    escaped = "/".join(
        part.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D") for part in path
    )
    return jsonschema.Draft202012Validator({"$ref": f"{_URI}#/{escaped}"}, registry=_REGISTRY)


def route(op: str) -> tuple[str, str]:
    if op in ("operation", "cancel"):
        return "/v1/{namespace}/operations/{operation_id}", "get" if op == "operation" else "delete"
    if op in OUTBOX:
        return f"/v1/{{namespace}}/outbox/{op}", "post"
    if op == "acknowledge":
        return "/v1/{namespace}/incidents/{id}/acknowledge", "post"
    if op in ("records", "incidents", "policy"):
        return f"/v1/{{namespace}}/{op}", "get"
    if op in ("shards", "stuck"):
        return f"/v1/{op}", "get"
    return "/v1/batch" if op == "batch" else f"/v1/{{namespace}}/{op}", "post"


def response_validator(op: str, status: int) -> jsonschema.Draft202012Validator:
    media = PROBLEM if status >= 400 else JSON
    return validator("paths", *route(op), "responses", str(status), "content", media, "schema")


def told(sample: Sample) -> dict[str, Any]:
    """A sample's whole body, as the HTTP door sends it."""
    body = body_of(sample.answer, sample.command, operator=False, dialect=Dialect.JSON)
    refusal = refusal_of(sample.answer)
    if refusal is not None:
        body = problem(refusal.status, refusal.code, detail_of(sample.answer), title=refusal.title, members=body)
    sent: dict[str, Any] = json.loads(json.dumps(body))
    return sent


each_sample = pytest.mark.parametrize(
    "sample", SAMPLES, ids=[f"{s.op}-{type(s.answer).__name__}-{i}" for i, s in enumerate(SAMPLES)]
)


def test_the_document_is_valid() -> None:
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []
    assert DOCUMENT["info"]["version"] == __version__
    assert document("9.9.9")["info"] == {**DOCUMENT["info"], "version": "9.9.9"}


def test_the_document_names_no_host() -> None:
    assert "servers" not in DOCUMENT
    assert re.search(r"https?:|localhost|127\.0\.0\.1", json.dumps(DOCUMENT)) is None


def test_every_path_is_there() -> None:
    found = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    assert found == {
        *(route(op) for op in COMMAND_OPS),
        *(route(op) for op in ("operation", "cancel", *OUTBOX)),
        *(route(op) for op in ("records", "incidents", "acknowledge", "policy", "batch", "key", "shards", "stuck")),
        *((f"/v1/{{namespace}}/{name}", method) for name in ("authorize", "verdict") for method in METHODS),
        *((f"/{name}", "get") for name in ("livez", "readyz", "metrics", "openapi.json")),
    }


def test_every_code_is_told_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    # The document is about the calls of the API; the gateway's answers are those of its routes.
    elsewhere = {Code.METHOD_NOT_ALLOWED, Code.UPSTREAM_FAILED}
    assert {code for code in Code if f'{{"const": "{code}"}}' not in text} == elsewhere
    assert set(DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == set(Code)


def test_every_path_tells_of_its_wrong_methods() -> None:
    gateways = {path for path in DOCUMENT["paths"] if path.endswith(("/authorize", "/verdict"))}
    assert len(gateways) == 2
    for path, item in DOCUMENT["paths"].items():
        for operation in item.values():
            # What gateways call takes any method there is.
            told = None if path in gateways else {"$ref": "#/components/responses/MethodNotAllowed"}
            assert operation["responses"].get("405") == told, path
    wrong = DOCUMENT["components"]["responses"]["MethodNotAllowed"]
    assert wrong["headers"]["Allow"]["required"]
    assert "OPTIONS" in wrong["description"]
    body = problem(405, Code.METHOD_NOT_ALLOWED, "Method Not Allowed.")
    validator("components", "responses", "MethodNotAllowed", "content", PROBLEM, "schema").validate(body)


def test_headers() -> None:
    for op in COMMAND_OPS:
        path, method = route(op)
        operation = DOCUMENT["paths"][path][method]
        assert [(p["name"], p["in"]) for p in operation["parameters"]] == [
            ("namespace", "path"),
            ("Idempotency-Key", "header"),
        ]
        assert "Retry-After" in operation["responses"]["503"]["headers"]
        assert "WWW-Authenticate" in operation["responses"]["401"]["headers"]
    assert "parameters" not in DOCUMENT["paths"]["/v1/batch"]["post"]
    for op in ("reserve", "accept", "resolve"):
        assert "Retry-After" in DOCUMENT["paths"][route(op)[0]]["post"]["responses"]["409"]["headers"]


def test_who_needs_no_credentials() -> None:
    open_to_all = {
        path for path, item in DOCUMENT["paths"].items() for call in item.values() if call.get("security") == []
    }
    assert open_to_all == {"/livez", "/readyz", "/openapi.json"}
    assert DOCUMENT["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_filters() -> None:
    def filters(op: str) -> list[str]:
        return [p["name"] for p in DOCUMENT["paths"][route(op)[0]]["get"]["parameters"] if p["in"] == "query"]

    assert filters("records") == ["state", "contested", "older_than_ms", "cursor", "limit"]
    assert filters("incidents") == ["cursor", "limit"]


def test_what_gateways_ask() -> None:
    for name, needed in (("authorize", ["namespace"]), ("verdict", ["namespace", "X-Idemactor-Result"])):
        for method in METHODS:
            call = DOCUMENT["paths"][f"/v1/{{namespace}}/{name}"][method]
            assert [p["name"] for p in call["parameters"] if p["required"]] == needed
            taken = {p["name"]: jsonschema.Draft202012Validator(p["schema"]).is_valid for p in call["parameters"]}
            assert [taken["deny"](text) for text in ("403", "answer", "200", "204")] == [True, True, False, False]
            assert [taken["proceed"](text) for text in ("200", "204", "403", "answer")] == [True, True, False, False]


# ------------------------------------------------------------------------------------------------------------ answers


@each_sample
def test_real_answers_fit(sample: Sample) -> None:
    response_validator(sample.op, sample.status).validate(told(sample))


@each_sample
def test_an_answer_without_one_of_its_members_does_not_fit(sample: Sample) -> None:
    body = told(sample)
    check = response_validator(sample.op, sample.status)
    for name in body:
        assert not check.is_valid({key: value for key, value in body.items() if key != name}), name


@each_sample
def test_an_answer_with_a_member_of_another_type_does_not_fit(sample: Sample) -> None:
    body = told(sample)
    check = response_validator(sample.op, sample.status)
    for name in body:
        assert not check.is_valid(body | {name: ["no such type"]}), name


def documented(schema: dict[str, Any]) -> set[str]:
    """Every member that a schema names, at its top level."""
    if "$ref" in schema:
        return documented(DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    parts = [part for word in ("allOf", "oneOf", "anyOf") for part in schema.get(word, [])]
    return set(schema.get("properties", {})).union(*map(documented, parts))


@each_sample
def test_every_member_is_documented(sample: Sample) -> None:
    path, method = route(sample.op)
    media = PROBLEM if sample.refused else JSON
    schema = DOCUMENT["paths"][path][method]["responses"][str(sample.status)]["content"][media]["schema"]
    assert set(told(sample)) <= documented(schema)


@pytest.mark.parametrize("op", ["reserve", "accept", "key"])
def test_a_bad_signature_fits(op: str) -> None:
    proceed = {"proceed": False} if op != "key" else {}
    check = response_validator(op, 401)
    check.validate(problem(401, Code.BAD_SIGNATURE, "Why.", members={"field": "header:X", **proceed}))
    assert not check.is_valid(problem(401, Code.BAD_SIGNATURE, "Why.", members=proceed))


@pytest.mark.parametrize(
    ("code", "members"),
    [
        (Code.INVALID_REQUEST, {"field": "key"}),
        (Code.INVALID_REQUEST, {}),
        (Code.UNAUTHENTICATED, {}),
        (Code.FORBIDDEN, {}),
        (Code.UNKNOWN_NAMESPACE, {}),
        (Code.TOO_LARGE, {}),
        (Code.UNSUPPORTED_MEDIA_TYPE, {}),
    ],
)
@pytest.mark.parametrize("op", sorted(COMMAND_OPS))
def test_what_never_reached_the_table_fits(op: str, code: Code, members: dict[str, object]) -> None:
    status = http_status_of_code(code)
    proceed = {"proceed": False} if op in ("reserve", "accept", "dispatch") else {}
    check = response_validator(op, status)
    check.validate(problem(status, code, "Why.", members={**members, **proceed}))
    assert check.is_valid(problem(status, code, "Why.", members=members)) == (not proceed)
    assert not check.is_valid(problem(status, Code.METHOD_NOT_ALLOWED, "Why.", members={**members, **proceed}))


def test_pages_fit() -> None:
    records = records_walk({"limit": 1}, SCOPE, Dialect.JSON, 2)
    records.take(RecordsPage(((1, "k", COMMITTED),), 1))
    incidents = incidents_walk({}, SCOPE, Dialect.JSON, 1)
    incidents.take(IncidentsPage(((1, INCIDENT),), None))
    for op, body in (("records", records.body()), ("incidents", incidents.body())):
        check = response_validator(op, 200)
        check.validate(body)
        assert not check.is_valid(body | {op: [{}]})
        assert not check.is_valid({op: body[op]})


def test_a_policy_fits() -> None:
    check = response_validator("policy", 200)
    body = policy_body("trade", Policy(fingerprint=FingerprintRule(include=("/a",))))
    check.validate(body)
    for name in body:
        assert not check.is_valid({key: value for key, value in body.items() if key != name}), name


def test_what_was_fetched_fits() -> None:
    intent = TakenIntent(WHO, OPERATION, 7, 1, 10, 40, 99, False, None, 10_000, Intent("", b"\xff", (("a", "b"),)))
    event = TakenEvent(Event(11_000, WHO, f"{OPERATION}.1", OPERATION, 11, NewEvent("text/plain", b"e")), 2, 40)
    body = poll_body([intent], [event], Dialect.JSON)
    check = response_validator("poll", 200)
    check.validate(body)
    entries = body["entries"]
    assert isinstance(entries, list)
    for entry in entries:
        for name in entry:
            without = {key: value for key, value in entry.items() if key != name}
            assert not check.is_valid({"entries": [without]}), name
    assert check.is_valid({"entries": []})
    assert not check.is_valid({})


def test_a_key_fits() -> None:
    check = response_validator("key", 200)
    body = key_body(RESOLVED)
    check.validate(body)
    for name in body:
        assert not check.is_valid({key: value for key, value in body.items() if key != name}), name
        assert not check.is_valid(body | {name: "no such word" * 30}), name


def test_a_batch_of_every_answer_fits() -> None:
    results = [told(sample) for sample in SAMPLES if sample.op in BATCH_OPS]
    results += [{"code": "IDEMPOTENCY_INVALID_REQUEST", "detail": "Why."}]
    results += [{"code": "IDEMPOTENCY_BAD_SIGNATURE", "detail": "Why.", "field": "header:X"}]
    check = response_validator("batch", 200)
    check.validate({"results": results})
    assert not check.is_valid({"results": [{"result": "reserved", "proceed": True}]})
    assert not check.is_valid({"results": [{"detail": "Why."}]})


# ----------------------------------------------------------------------------------------------------------- requests

POOL: dict[str, list[object]] = {
    "key": ["k", "", "k" * 256, "k" * 257, "a\x00", 7, None],
    "token": [1, 0, 2**53 - 1, 2**53, "1", True, None],
    "lease_ms": [1, 0, 86_400_000, 86_400_001, False, None],
    "ttl_ms": [1, 0, 400 * 86_400_000, 400 * 86_400_000 + 1, "5", None],
    "window_ms": [1, 0, None],
    "wait_ms": [0, -1, 60_000, 60_001, None],
    "request_id": ["r", "", "r" * 129, "a\x7f", None],
    "holder": ["", "h" * 129, "a\x1f", 1, None],
    "fingerprint": ["f", "", "f" * 129, 1, None],
    "payload": [0, None, {"a": []}, False],
    "reason": ["a\nb\tc", "", "a\x0b", "r" * 513, None],
    "on_duplicate": ["replay", "reject", "Reject", 1, None],
    "verdict": ["committed", "released", "pending", None],
    "force": [True, 0, "true", None],
    "outcome": [
        None,
        {"status": 200},
        {"status": 99},
        {"status": 200, "body": "a", "body_b64": None},
        {"status": 200, "body": "a", "body_b64": "AA=="},
        {"status": 200, "headers": [["a", "b"]], "body_b64": "AA=="},
        {"status": 200, "headers": [["a", "b\r\nc"]]},
        {"status": 200, "headers": [["a", "b\x0bc"]]},
        {"status": 200, "headers": [["a", "b\tc\x80"]]},
        {"status": 200, "headers": [["a b", "c"]]},
        {"status": 200, "headers": [["", "b"]]},
        {"status": 200, "headers": [["a"]]},
        {"status": 200, "headers": None, "x": 1},
        {"status": 200, "headers": ["ab"]},
        {"body": "a"},
        "text",
    ],
    "source": ["http", "", "s" * 64, 1, None],
    "request": [
        None,
        {"method": "POST", "path": "/a?b"},
        {"method": "POST", "path": "/", "headers": [["a", "b"]], "body_b64": "AA=="},
        {"method": "POST", "path": "/", "headers": None, "body": None},
        {"method": "POST", "path": "/", "body": "a", "body_b64": "AA=="},
        {"method": "POST", "path": ""},
        {"method": "", "path": "/"},
        {"method": "POST"},
        {"path": "/"},
        {"method": "POST", "path": "/", "more": 1},
        {"method": "POST", "path": "/", "headers": [["a"]]},
        "text",
    ],
    "intent": [
        None,
        {},
        {"content_type": "text/plain", "body": "a"},
        {"content_type": "", "body": "a"},
        {"content_type": "a\nb"},
        {"content_type": "a "},
        {"content_type": None, "body": None, "body_b64": "AA==", "headers": None},
        {"body": "a", "body_b64": "AA=="},
        {"body": 1},
        {"headers": [["x-a", "b c"]]},
        {"headers": {"x-a": "b", "x-b": ""}},
        {"headers": [["x a", "b"]]},
        {"headers": {"x-a": "b\x00"}},
        {"headers": [["x-a", " b"]]},
        {"headers": [["x-a"]]},
        {"headers": [["x-a", "b"]] * 64},
        {"headers": [["x-a", "b"]] * 65},
        {"headers": ["ab"]},
        {"headers": "ab"},
        {"more": 1},
        "text",
    ],
    "events": [
        None,
        [],
        [{}],
        [{"content_type": "text/plain", "body": "a", "order_key": "o", "headers": [["x-a", "b"]]}],
        [{"order_key": None}],
        [{"order_key": ""}],
        [{"order_key": "o" * 257}],
        [{"body": "a"}, {"body_b64": 1}],
        [{"status": 200}],
        [{}] * 100,
        [{}] * 101,
        {},
        ["text"],
    ],
    "order_key": ["o", "", "o" * 256, "o" * 257, "a\x00", 1, None],
    "not_before": [0, -1, 2**53 - 1, 2**53, "1", True, None],
    "expires_in_ms": [1, 0, 400 * 86_400_000, 400 * 86_400_000 + 1, None],
    "unknown": [None, 1],
    "payload_json": [None, "1"],
}
"""Values at and beyond the edges; each call is tried with every pair of members."""

GOOD: dict[str, object] = {"key": "k", "token": 1, "lease_ms": 1, "verdict": "released", "intent": {"body": "do it"}}


def bodies(op: str) -> list[dict[str, object]]:
    required = {field.name: GOOD[field.name] for field in CALLS[op] if field.required}
    singles = [(name, value) for name, values in POOL.items() for value in values]
    tried = [required, {}]
    tried += [required | {name: value} for name, value in singles]
    tried += [required | dict(pair) for pair in itertools.combinations(singles, 2) if pair[0][0] != pair[1][0]]
    return tried


def is_taken(op: str, members: dict[str, object], *, in_batch: bool = False) -> bool:
    # Where the schema cannot know it, the key came in the header.
    unnamed = members.get("key") is None and members.get("source") is None
    header_key = "k" if unnamed and not in_batch else None
    try:
        command_from(op, members, SCOPE, Dialect.JSON, header_key=header_key, in_batch=in_batch)
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize("op", ["ack", "nack", "poll"])
def test_the_schema_of_the_outbox_takes_what_the_parser_takes(op: str) -> None:
    check = validator("paths", *route(op), "requestBody", "content", JSON, "schema")
    table = Members(OUTBOX[op], Dialect.JSON)
    given: dict[str, object] = {} if op == "poll" else {"id": OPERATION, "key": "k", "token": 1}
    pool = POOL | {
        "id": [OPERATION, "", "x" * 64, "x" * 65, 1, None],
        "max": [1, 0, 1_000, 1_001, None],
        "visibility_ms": [1, 0, None],
        "delay_ms": [0, -1, 86_400_000, 86_400_001, None],
        "failed": [True, 1, None],
    }

    def takes(members: dict[str, object]) -> bool:
        try:
            members_of(table, members)
        except InvalidRequest:
            return False
        return True

    tried: list[dict[str, object]] = [given, {}, {"key": "k"}]
    tried += (given | {name: value} for name, values in pool.items() for value in values)
    assert [members for members in tried if check.is_valid(members) != takes(members)] == []
    assert {takes(members) for members in tried} == {True, False}


@pytest.mark.parametrize("op", sorted(COMMAND_OPS))
def test_the_schema_takes_what_the_parser_takes(op: str) -> None:
    check = validator("paths", *route(op), "requestBody", "content", JSON, "schema")
    found = [(check.is_valid(members), is_taken(op, members), members) for members in bodies(op)]
    assert [members for by_schema, by_parser, members in found if by_schema != by_parser] == []
    assert {by_parser for _, by_parser, _ in found} == {True, False}


def test_the_schema_of_a_dry_run_takes_what_the_parser_takes() -> None:
    check = validator("paths", *route("key"), "requestBody", "content", JSON, "schema")
    table = Members(KEY, Dialect.JSON)

    def takes(members: dict[str, object]) -> bool:
        try:
            members_of(table, members)
        except InvalidRequest:
            return False
        return True

    pairs = [{"source": source, "request": raw} for source in POOL["source"] for raw in POOL["request"]]
    tried = [{}, *pairs, *({**pair, "key": "k"} for pair in pairs), *({"source": one} for one in POOL["source"])]
    assert [members for members in tried if check.is_valid(members) != takes(members)] == []
    assert {takes(members) for members in tried} == {True, False}


def test_the_schema_of_a_batch_takes_what_the_parser_takes() -> None:
    check = validator("components", "schemas", "BatchRequest")
    for op in COMMAND_OPS:
        required = {field.name: GOOD[field.name] for field in CALLS[op] if field.required}
        sourced = [{"source": "http", "request": raw} for raw in POOL["request"]]
        for members in [required, {}, *sourced, *(required | {n: v} for n, vs in POOL.items() for v in vs)]:
            if members.get("wait_ms", 0) is None:
                # The parser takes a null, as everywhere; the document does not invite it.
                continue
            given = {"ops": [{"op": op, "namespace": "trade", **members}]}
            assert check.is_valid(given) == is_taken(op, members, in_batch=True), given
    call = {"op": "get", "namespace": "trade", "key": "k"}
    assert check.is_valid({"ops": []})
    assert check.is_valid({"ops": [call] * 1000})
    assert not check.is_valid({"ops": [call] * 1001})
    assert not check.is_valid({"ops": [call], "more": 1})
    assert not check.is_valid({})
