"""The members of a call to its command: what each member takes and refuses, in both dialects."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from idemactor.core.commands import (
    Accept,
    Command,
    Commit,
    Dispatch,
    Doubt,
    Extend,
    Forget,
    Get,
    Release,
    Reserve,
    Resolve,
    Verdict,
)
from idemactor.core.delivery import Intent, NewEvent
from idemactor.core.fingerprint import CALLER_RULE, Fingerprint, FingerprintRule, Number, fingerprint_of
from idemactor.core.keys import Identity
from idemactor.core.limits import EVENTS_BYTES_MAX
from idemactor.core.policy import DispatchPolicy, OnDuplicate, Policy
from idemactor.core.record import Outcome
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.wire.calls import CALLS
from idemactor.wire.requests import BATCH_OPS, COMMAND_OPS, OPERATOR_OPS, Dialect, Scope, command_from
from idemactor.wire.sourced import RawRequest, Resolved, Rule

SCOPE = Scope("acme", "trade", Policy(), operator=True)
WHO = Identity("acme", "trade", "k")

MINIMAL: dict[str, dict[str, object]] = {
    "reserve": {"key": "k"},
    "accept": {"key": "k"},
    "dispatch": {"key": "k", "intent": {"body": "do it"}},
    "commit": {"key": "k", "token": 7},
    "release": {"key": "k", "token": 7},
    "extend": {"key": "k", "token": 7, "lease_ms": 1},
    "doubt": {"key": "k", "token": 7},
    "resolve": {"key": "k", "token": 7, "verdict": "released"},
    "get": {"key": "k"},
    "forget": {"key": "k"},
}

DO_IT = Intent("", b"do it")
DO_IT_PRINT = fingerprint_of(b"do it", FingerprintRule())

both_dialects = pytest.mark.parametrize("dialect", list(Dialect))


def scope_with(**rule: Any) -> Scope:
    return replace(SCOPE, policy=Policy(fingerprint=FingerprintRule(**rule)))


def refused_field(
    op: str, members: dict[str, object], dialect: Dialect, scope: Scope = SCOPE, **more: Any
) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        command_from(op, members, scope, dialect, **more)
    assert caught.value.code is Code.INVALID_REQUEST
    assert caught.value.detail
    return caught.value.field


# ------------------------------------------------------------------------------------------------- what is understood


@both_dialects
@pytest.mark.parametrize(
    ("op", "members", "command"),
    [
        ("reserve", {}, Reserve(WHO)),
        (
            "reserve",
            {
                "fingerprint": "f" * 128,
                "request_id": "r" * 128,
                "lease_ms": 86_400_000,
                "ttl_ms": 400 * 86_400_000,
                "wait_ms": 60_000,
                "holder": "h" * 128,
                "on_duplicate": "reject",
            },
            Reserve(
                WHO,
                request_id="r" * 128,
                fingerprint=Fingerprint("f" * 128, CALLER_RULE),
                lease_ms=86_400_000,
                ttl_ms=400 * 86_400_000,
                wait_ms=60_000,
                holder="h" * 128,
                on_duplicate=OnDuplicate.REJECT,
            ),
        ),
        ("reserve", {"window_ms": 1, "lease_ms": 1, "wait_ms": 0}, Reserve(WHO, window_ms=1, lease_ms=1)),
        ("accept", {}, Accept(WHO)),
        (
            "accept",
            {
                "request_id": "é😀",
                "ttl_ms": 1,
                "holder": "",
                "on_duplicate": "replay",
                "outcome": {"status": 100},
            },
            Accept(
                WHO,
                request_id="é😀",
                ttl_ms=1,
                holder="",
                on_duplicate=OnDuplicate.REPLAY,
                outcome=Outcome(100),
            ),
        ),
        ("dispatch", {}, Dispatch(WHO, DO_IT, DO_IT_PRINT)),
        (
            "dispatch",
            {
                "intent": {"content_type": "text/plain", "body": "é", "headers": {"x-a": "b", "X-B": ""}},
                "fingerprint": "f",
                "order_key": "o" * 256,
                "not_before": 0,
                "expires_in_ms": 400 * 86_400_000,
                "ttl_ms": 5,
            },
            Dispatch(
                WHO,
                Intent("text/plain", "é".encode(), (("x-a", "b"), ("X-B", ""))),
                Fingerprint("f", CALLER_RULE),
                "o" * 256,
                0,
                400 * 86_400_000,
                5,
            ),
        ),
        ("commit", {}, Commit(WHO, 7)),
        ("commit", {"events": []}, Commit(WHO, 7)),
        (
            "commit",
            {"events": [{"body": "a"}, {"content_type": "t/p", "headers": [["a", "b"]], "order_key": "o"}]},
            Commit(WHO, 7, events=(NewEvent("", b"a"), NewEvent("t/p", b"", (("a", "b"),), "o"))),
        ),
        (
            "commit",
            {"token": 2**53 - 1, "ttl_ms": 5, "outcome": {"status": 599, "headers": [["a", ""]], "body": "é"}},
            Commit(WHO, 2**53 - 1, Outcome(599, (("a", ""),), "é".encode()), 5),
        ),
        ("release", {"token": 1}, Release(WHO, 1)),
        ("release", {"reason": "a\tb\r\nc"}, Release(WHO, 7, "a\tb\r\nc")),
        ("extend", {"lease_ms": 30_000}, Extend(WHO, 7, 30_000)),
        ("doubt", {"reason": "r" * 512}, Doubt(WHO, 7, "r" * 512)),
        ("resolve", {}, Resolve(WHO, 7, Verdict.RELEASED)),
        (
            "resolve",
            {"verdict": "committed", "outcome": {"status": 200}},
            Resolve(WHO, 7, Verdict.COMMITTED, Outcome(200)),
        ),
        ("get", {}, Get(WHO)),
        ("forget", {}, Forget(WHO)),
        ("forget", {"force": True}, Forget(WHO, force=True)),
        ("forget", {"force": False}, Forget(WHO)),
    ],
)
def test_commands(op: str, members: dict[str, object], command: Command, dialect: Dialect) -> None:
    assert command_from(op, MINIMAL[op] | members, SCOPE, dialect) == command


def test_names_and_text_may_come_as_bin_over_rpc() -> None:
    members: dict[str, object] = {
        "key": "é".encode(),
        "request_id": b"r",
        "holder": b"h",
        "fingerprint": b"f",
        "on_duplicate": b"reject",
        "outcome": {"status": 200, "headers": [[b"a", "b"]], "body": b"\xff"},
    }
    assert command_from("accept", members, SCOPE, Dialect.MSGPACK) == Accept(
        Identity("acme", "trade", "é"),
        request_id="r",
        holder="h",
        fingerprint=Fingerprint("f", CALLER_RULE),
        on_duplicate=OnDuplicate.REJECT,
        outcome=Outcome(200, (("a", "b"),), b"\xff"),
    )
    resolve: dict[str, object] = {"key": b"k", "token": 7, "verdict": b"released"}
    assert command_from("resolve", resolve, SCOPE, Dialect.MSGPACK) == Resolve(WHO, 7, Verdict.RELEASED)


@pytest.mark.parametrize("name", ["key", "request_id", "holder", "fingerprint", "on_duplicate"])
@pytest.mark.parametrize(("dialect", "value"), [(Dialect.JSON, b"replay"), (Dialect.MSGPACK, b"\xff")])
def test_bytes_that_are_no_text_here(name: str, dialect: Dialect, value: bytes) -> None:
    assert refused_field("reserve", MINIMAL["reserve"] | {name: value}, dialect) == name


@both_dialects
@pytest.mark.parametrize("op", sorted(COMMAND_OPS))
def test_null_is_as_if_absent(op: str, dialect: Dialect) -> None:
    optional = {field.name for field in CALLS[op] if not field.required}
    if dialect is Dialect.JSON:
        optional -= {field.name for field in CALLS[op] if field.rpc_only}
    members = MINIMAL[op] | dict.fromkeys(optional)
    assert command_from(op, members, SCOPE, dialect) == command_from(op, MINIMAL[op], SCOPE, dialect)


@both_dialects
@pytest.mark.parametrize("op", sorted(COMMAND_OPS))
def test_a_required_member_that_is_missing_or_null(op: str, dialect: Dialect) -> None:
    required = [field.name for field in CALLS[op] if field.required]
    assert "key" in required
    for name in required:
        without = {key: value for key, value in MINIMAL[op].items() if key != name}
        assert refused_field(op, without, dialect) == name
        assert refused_field(op, without | {name: None}, dialect) == name


def test_each_call_builds_what_its_table_says() -> None:
    replaced = {"payload", "payload_json", "key", "source", "request"}
    for op, table in CALLS.items():
        built = type(command_from(op, MINIMAL[op], SCOPE, Dialect.JSON))
        # What is said of an operation that was fetched: outbox.ack and outbox.nack say it.
        others = {"identity", "failed", "operation_id"}
        assert {field.name for field in table} - replaced == {field.name for field in fields(built)} - others


# ------------------------------------------------------------------------------------------------------ what is refused

NO_INTEGERS: list[object] = [True, False, 1.0, 1e3, "1", b"1", Number("1.0"), Number("1e3"), Number("-0"), [], {}]
NO_TEXT: list[object] = [1, True, 1.5, [], {}, Number("1.0")]
NO_CLEAN_TEXT: list[object] = [*NO_TEXT, "a\x00b", "a\x1bb", "a\x7f", "a\x85", "\ud800", "a\udfffb"]

RAW: dict[str, object] = {"method": "POST", "path": "/a?b=c"}
BAD_METHODS: list[object] = ["", "P" * 65, "PO\nST", None]
BAD_PATHS: list[object] = ["", "/" * 16_385, "/\x00", None]
BAD_HEADERS: list[object] = ["a: b", [["a"]], [["a", "b", "c"]], [["", "b"]], [["a", "b\r\nc"]], [[1, "b"]]]
BAD_BODIES: list[object] = [1, True, [], {}]
BAD_IN_A_REQUEST: list[tuple[str, object]] = [
    *(("method", value) for value in BAD_METHODS),
    *(("path", value) for value in BAD_PATHS),
    *(("headers", value) for value in BAD_HEADERS),
    *(("body", value) for value in BAD_BODIES),
    ("more", 1),
]

BAD: dict[str, tuple[list[str], list[object]]] = {
    "key": (
        sorted(COMMAND_OPS),
        [*NO_CLEAN_TEXT, "", " ", "\u2003", "a\nb", "a\tb", "k" * 257],
    ),
    "token": (
        ["commit", "release", "extend", "doubt", "resolve"],
        [*NO_INTEGERS, 0, -1, 2**53, 2**64, Number("9" * 30)],
    ),
    "lease_ms": (["reserve", "extend"], [*NO_INTEGERS, 0, -1, 86_400_001]),
    "ttl_ms": (["reserve", "accept", "commit", "dispatch"], [*NO_INTEGERS, 0, -1, 400 * 86_400_000 + 1]),
    "window_ms": (["reserve", "accept"], [*NO_INTEGERS, 0, -1, 400 * 86_400_000 + 1]),
    "wait_ms": (["reserve"], [*NO_INTEGERS, -1, 60_001]),
    "request_id": (["reserve", "accept"], [*NO_CLEAN_TEXT, "", "a\nb", "r" * 129]),
    "holder": (["reserve", "accept"], [*NO_CLEAN_TEXT, "a\nb", "r" * 129]),
    "fingerprint": (["reserve", "accept", "dispatch"], [*NO_CLEAN_TEXT, "", "a\nb", "r" * 129]),
    "reason": (["release", "doubt"], [*NO_CLEAN_TEXT, "a\x0bb", "r" * 513]),
    "on_duplicate": (["reserve", "accept"], [*NO_TEXT, "", "Replay", "replay ", "hold"]),
    "verdict": (["resolve"], [*NO_TEXT, "", "Committed", "in_doubt"]),
    "force": (["forget"], [0, 1, "true", b"true", [], {}]),
    "source": (["reserve", "accept"], [*NO_CLEAN_TEXT, "", "a\nb", "s" * 64]),
    "request": (
        ["reserve", "accept"],
        [
            *(1, "text", [], {}, {"method": "POST"}, {"path": "/"}, {"method": 1, "path": "/"}),
            *({**RAW, name: value} for name, value in BAD_IN_A_REQUEST),
        ],
    ),
    "intent": (
        ["dispatch"],
        [
            *(1, "text", [], {"more": 1}, {"content_type": ""}, {"content_type": 1}, {"order_key": "o"}),
            *({"body": value} for value in BAD_BODIES),
            *({"headers": value} for value in ["a: b", [["a"]], [["a", "b", "c"]], [["", "b"]], [["a", "b\n"]]]),
        ],
    ),
    "events": (
        ["commit"],
        [1, "text", {}, [{}] * 101],
    ),
    "order_key": (["dispatch"], [*NO_CLEAN_TEXT, "", "a\nb", "o" * 257]),
    "not_before": (["dispatch"], [*NO_INTEGERS, -1, 2**53]),
    "expires_in_ms": (["dispatch"], [*NO_INTEGERS, 0, -1, 400 * 86_400_000 + 1]),
    "payload_json": ([], [1, True, {}, "", "{", "NaN", '{"a":1,"a":2}', '"\\ud800"', b"\xff", "1e1000000000"]),
}


def test_every_member_has_its_bad_values() -> None:
    tested = set(BAD) | {"payload", "outcome"}
    assert tested == {field.name for table in CALLS.values() for field in table}


@both_dialects
@pytest.mark.parametrize(
    ("op", "name", "value"),
    [(op, name, value) for name, (ops, values) in BAD.items() for op in ops for value in values],
)
def test_bad_values(op: str, name: str, value: object, dialect: Dialect) -> None:
    assert refused_field(op, MINIMAL[op] | {name: value}, dialect) == name


@pytest.mark.parametrize("value", BAD["payload_json"][1])
def test_bad_payload_json(value: object) -> None:
    assert refused_field("reserve", {"key": "k", "payload_json": value}, Dialect.MSGPACK) == "payload_json"


@both_dialects
@pytest.mark.parametrize("op", sorted(COMMAND_OPS))
def test_unknown_members_are_named(op: str, dialect: Dialect) -> None:
    known = {field.name for field in CALLS[op]}
    others = {field.name for table in CALLS.values() for field in table} - known
    for name in [*sorted(others), "namespace", "op", "Key", "key ", "tenant", ""]:
        assert refused_field(op, MINIMAL[op] | {name: None}, dialect) == name
    with pytest.raises(InvalidRequest, match="lease_msec"):
        command_from(op, MINIMAL[op] | {"lease_msec": 5}, SCOPE, dialect)


def test_the_name_of_an_unknown_member_is_cut() -> None:
    with pytest.raises(InvalidRequest) as caught:
        command_from("get", {"key": "k", "x" * 100_000: 1}, SCOPE, Dialect.JSON)
    assert len(caught.value.detail) < 200
    assert caught.value.field == "x" * 64


def test_a_refusal_never_quotes_a_value() -> None:
    secret = "s3cr3t"
    for name, value in [("key", secret + "\x00"), ("lease_ms", secret), ("outcome", secret), ("on_duplicate", secret)]:
        op = "accept" if name == "outcome" else "reserve"
        with pytest.raises(InvalidRequest) as caught:
            command_from(op, MINIMAL[op] | {name: value}, SCOPE, Dialect.JSON)
        assert secret not in str(caught.value)


@both_dialects
@pytest.mark.parametrize("op", ["", "Reserve", "ping", "batch", "acknowledge"])
def test_no_such_command(op: str, dialect: Dialect) -> None:
    assert refused_field(op, {"key": "k"}, dialect) == "op"


# -------------------------------------------------------------------------------------------------- members together


@both_dialects
@pytest.mark.parametrize("op", ["reserve", "accept"])
def test_members_that_exclude_each_other(op: str, dialect: Dialect) -> None:
    assert refused_field(op, {"key": "k", "ttl_ms": 1, "window_ms": 1}, dialect) == "window_ms"
    assert refused_field(op, {"key": "k", "fingerprint": "f", "payload": 1}, dialect) == "payload"
    assert refused_field(op, {"key": "k", "payload": False, "fingerprint": "f"}, dialect) == "payload"
    command = command_from(op, {"key": "k", "payload": None, "fingerprint": "f"}, SCOPE, dialect)
    assert isinstance(command, Reserve | Accept)
    assert command.fingerprint == Fingerprint("f", CALLER_RULE)


def test_payload_json_stands_alone_and_is_for_rpc_alone() -> None:
    for beside in ({"payload": 1}, {"fingerprint": "f"}):
        members = {"key": "k", "payload_json": "1", **beside}
        assert refused_field("reserve", members, Dialect.MSGPACK) == "payload_json"
    assert refused_field("reserve", {"key": "k", "payload_json": "1"}, Dialect.JSON) == "payload_json"


def test_the_key_may_come_in_the_header() -> None:
    def command(members: dict[str, object], header_key: str | None) -> Command:
        return command_from("get", members, SCOPE, Dialect.JSON, header_key=header_key)

    assert command({}, "k") == Get(WHO)
    assert command({"key": None}, "k") == Get(WHO)
    assert command({"key": "k"}, "k") == Get(WHO)
    assert command({"key": "k"}, None) == Get(WHO)
    assert refused_field("get", {"key": "K"}, Dialect.JSON, header_key="k") == "key"
    assert refused_field("get", {"key": ""}, Dialect.JSON, header_key="k") == "key"
    assert refused_field("get", {}, Dialect.JSON) == "key"


def test_batches() -> None:
    assert sorted(COMMAND_OPS - BATCH_OPS) == ["forget"]
    for op in BATCH_OPS:
        assert command_from(op, MINIMAL[op], SCOPE, Dialect.JSON, in_batch=True)
    assert refused_field("forget", MINIMAL["forget"], Dialect.JSON, in_batch=True) == "op"
    for wait_ms in (0, 5):
        members = MINIMAL["reserve"] | {"wait_ms": wait_ms}
        assert refused_field("reserve", members, Dialect.JSON, in_batch=True) == "wait_ms"
    assert command_from("reserve", {"key": "k", "wait_ms": None}, SCOPE, Dialect.JSON, in_batch=True) == Reserve(WHO)


def test_only_operators() -> None:
    assert sorted(OPERATOR_OPS) == ["forget", "resolve"]
    caller = replace(SCOPE, operator=False)
    for op in COMMAND_OPS - OPERATOR_OPS:
        assert command_from(op, MINIMAL[op], caller, Dialect.JSON)
    for op in OPERATOR_OPS:
        with pytest.raises(RequestError) as caught:
            command_from(op, MINIMAL[op], caller, Dialect.JSON)
        assert caught.value.code is Code.FORBIDDEN


# ----------------------------------------------------------------------------------------------------------- payloads


def fingerprint(members: dict[str, object], dialect: Dialect, scope: Scope = SCOPE) -> Fingerprint | None:
    command = command_from("reserve", {"key": "k", **members}, scope, dialect)
    assert isinstance(command, Reserve)
    return command.fingerprint


@both_dialects
@pytest.mark.parametrize("payload", [0, False, "", "text", [], {}, {"a": [1, None]}, 1.5])
def test_a_payload_is_fingerprinted_by_the_rule_of_the_namespace(payload: object, dialect: Dialect) -> None:
    for rule in ({}, {"exclude": ("/at",)}, {"include": ("/a",)}):
        scope = scope_with(**rule)
        expected = fingerprint_of(payload, scope.policy.fingerprint)
        assert fingerprint({"payload": payload}, dialect, scope) == expected


def test_payload_json_is_the_payload_that_it_holds() -> None:
    exact = fingerprint({"payload": Number("1.00000000000000000001")}, Dialect.JSON)
    assert fingerprint({"payload_json": "1.00000000000000000001"}, Dialect.MSGPACK) == exact
    assert fingerprint({"payload_json": b'{"a":[1.0]}'}, Dialect.MSGPACK) == fingerprint(
        {"payload": {"a": [1]}}, Dialect.JSON
    )


def test_a_null_in_payload_json_is_a_payload_and_a_null_payload_is_none() -> None:
    assert fingerprint({"payload_json": "null"}, Dialect.MSGPACK) == fingerprint_of(None, FingerprintRule())
    assert fingerprint({"payload": None}, Dialect.MSGPACK) is None
    assert fingerprint({"payload": None}, Dialect.JSON) is None


def test_bytes_are_compared_as_they_are_whatever_the_rule_names() -> None:
    for rule in ({}, {"include": ("/a",)}, {"exclude": ("/a",)}):
        scope = scope_with(**rule)
        one = fingerprint({"payload": b"one"}, Dialect.MSGPACK, scope)
        two = fingerprint({"payload": b"two"}, Dialect.MSGPACK, scope)
        text = fingerprint({"payload": "one"}, Dialect.MSGPACK, scope)
        assert one is not None
        assert two is not None
        assert text is not None
        assert len({one.value, two.value, text.value}) == 3
        assert one.rule == two.rule == scope.policy.fingerprint.rule_id
        assert one == fingerprint({"payload": b"one"}, Dialect.MSGPACK, scope)


@both_dialects
@pytest.mark.parametrize("payload", [float("nan"), float("inf"), "\ud800", {"a": "\udcff"}, Number("1e1000000000")])
def test_payloads_without_a_meaning(payload: object, dialect: Dialect) -> None:
    assert refused_field("reserve", {"key": "k", "payload": payload}, dialect) == "payload"


@both_dialects
def test_a_namespace_may_require_a_fingerprint(dialect: Dialect) -> None:
    scope = scope_with(required=True)
    for op in ("reserve", "accept"):
        assert refused_field(op, {"key": "k"}, dialect, scope) == "fingerprint"
        assert refused_field(op, {"key": "k", "payload": None}, dialect, scope) == "fingerprint"
        assert command_from(op, {"key": "k", "payload": 0}, scope, dialect)
        assert command_from(op, {"key": "k", "fingerprint": "f"}, scope, dialect)
    assert command_from("get", {"key": "k"}, scope, dialect) == Get(WHO)


# ------------------------------------------------------------------------------------------------------------- sources


def sourced(*, window_ms: int | None = None, ttl_ms: int | None = None) -> Scope:
    """A scope with one source that makes the key of the path."""

    def resolve(source: str, request: RawRequest) -> Resolved:
        if source != "mine":
            raise InvalidRequest("there is no such source", field="source")
        fingerprint = Fingerprint(f"{request.method} {request.body!r} {request.headers}", "rule")
        return Resolved(request.path, fingerprint, Rule.SOURCE, source, "elsewhere", window_ms, ttl_ms)

    return replace(SCOPE, resolver=resolve)


@both_dialects
@pytest.mark.parametrize(("op", "command"), [("reserve", Reserve), ("accept", Accept)])
def test_a_source_and_a_request_instead_of_a_key(op: str, command: type[Reserve | Accept], dialect: Dialect) -> None:
    request: dict[str, object] = {**RAW, "headers": [["A", "b"]], "body": "é"}
    made = command_from(op, {"source": "mine", "request": request}, sourced(window_ms=5), dialect)
    # The namespace is that of the call, not the source's own.
    fingerprint = Fingerprint(f"POST {'é'.encode()!r} (('A', 'b'),)", "rule")
    assert made == command(Identity("acme", "trade", "/a?b=c"), fingerprint=fingerprint, window_ms=5)


def test_the_body_of_a_request_comes_as_bytes_too() -> None:
    scope = sourced(ttl_ms=7)
    json: dict[str, object] = {"source": "mine", "request": {**RAW, "body_b64": "/wA="}}
    rpc: dict[str, object] = {"source": b"mine", "request": {"method": b"POST", "path": b"/a?b=c", "body": b"\xff\x00"}}
    made = command_from("reserve", json, scope, Dialect.JSON)
    assert isinstance(made, Reserve)
    assert made.fingerprint is not None
    assert made.fingerprint.value.startswith("POST b'\\xff\\x00'")
    assert made.ttl_ms == 7
    assert command_from("reserve", rpc, scope, Dialect.MSGPACK) == made


@both_dialects
@pytest.mark.parametrize("more", [{"ttl_ms": 9}, {"window_ms": 9}])
def test_who_calls_may_know_better_how_long_to_remember(more: dict[str, object], dialect: Dialect) -> None:
    for scope in (sourced(window_ms=5), sourced(ttl_ms=5), sourced()):
        made = command_from("reserve", {"source": "mine", "request": RAW, **more}, scope, dialect)
        assert isinstance(made, Reserve)
        assert {"ttl_ms": made.ttl_ms, "window_ms": made.window_ms} == {"ttl_ms": None, "window_ms": None, **more}


@both_dialects
def test_what_excludes_a_source(dialect: Dialect) -> None:
    both: dict[str, object] = {"source": "mine", "request": RAW}
    for name, value in (("key", "k"), ("fingerprint", "f"), ("payload", 0)):
        assert refused_field("reserve", both | {name: value}, dialect, sourced()) == name
    assert refused_field("accept", both, dialect, sourced(), header_key="k") == "key"
    for name in both:
        assert refused_field("reserve", {name: both[name]}, dialect, sourced()) == ({*both} - {name}).pop()
        assert refused_field("reserve", {"key": "k", name: both[name]}, dialect, sourced()) == ({*both} - {name}).pop()
    assert refused_field("reserve", both | {"source": "other"}, dialect, sourced()) == "source"
    assert refused_field("reserve", both, dialect) == "source"
    for op in sorted(COMMAND_OPS - {"reserve", "accept"}):
        assert refused_field(op, MINIMAL[op] | both, dialect, sourced()) in both


# ------------------------------------------------------------------------------------------------- intents and events


@both_dialects
@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ([["Connection", "close"]], "intent.headers.0"),
        ([["x-a", "b"], ["Host", "elsewhere"]], "intent.headers.1"),
        ({"Content-Length": "5"}, "intent.headers.0"),
        ({"content-type": "text/plain"}, "intent.headers.0"),
        ({"Idempotency-Key": "another"}, "intent.headers.0"),
        ({"webhook-signature": "mine"}, "intent.headers.0"),
        ({"x a": "b"}, "intent.headers.0"),
        ({"x-a": " b"}, "intent.headers.0"),
        ({"x-a": "b\x01"}, "intent.headers.0"),
        ([["x-a", "b"]] * 65, "intent.headers"),
    ],
)
def test_headers_that_cannot_be_sent(headers: object, field: str, dialect: Dialect) -> None:
    intent = {"body": "do it", "headers": headers}
    assert refused_field("dispatch", {"key": "k", "intent": intent}, dialect) == field
    events = [{"body": "a"}, {"body": "b", "headers": headers}]
    place = field.replace("intent", "events.1")
    assert refused_field("commit", MINIMAL["commit"] | {"events": events}, dialect) == place


@both_dialects
def test_a_mistake_in_an_event_is_found_in_its_place(dialect: Dialect) -> None:
    for event in (1, {"more": 1}, {"order_key": ""}, {"body": 1}):
        members = MINIMAL["commit"] | {"events": [{}, {}, event]}
        assert refused_field("commit", members, dialect) == "events.2"


@both_dialects
def test_an_intent_may_be_as_large_as_its_namespace_says(dialect: Dialect) -> None:
    scope = replace(SCOPE, policy=Policy(dispatch=DispatchPolicy(intent_max_bytes=10)))
    fits = {"content_type": "t/p", "body": "four", "headers": {"a": "bc"}}
    assert isinstance(command_from("dispatch", {"key": "k", "intent": fits}, scope, dialect), Dispatch)
    with pytest.raises(RequestError) as caught:
        command_from("dispatch", {"key": "k", "intent": fits | {"body": "fives"}}, scope, dialect)
    assert (caught.value.code, caught.value.field) == (Code.TOO_LARGE, "intent")


@both_dialects
def test_the_events_of_a_commit_are_bounded_together(dialect: Dialect) -> None:
    half = {"body": "e" * (EVENTS_BYTES_MAX // 2)}
    assert isinstance(command_from("commit", MINIMAL["commit"] | {"events": [half, half]}, SCOPE, dialect), Commit)
    with pytest.raises(RequestError) as caught:
        command_from("commit", MINIMAL["commit"] | {"events": [half, half, {"body": "e"}]}, SCOPE, dialect)
    assert (caught.value.code, caught.value.field) == (Code.TOO_LARGE, "events")


def print_of(scope: Scope = SCOPE, **members: object) -> Fingerprint | None:
    command = command_from("dispatch", {"key": "k", **members}, scope, Dialect.JSON)
    assert isinstance(command, Dispatch)
    return command.fingerprint


def test_an_intent_stands_for_itself_by_its_meaning() -> None:
    def json_of(body: str, kind: str = "application/json") -> Fingerprint | None:
        return print_of(intent={"content_type": kind, "body": body})

    assert (
        json_of('{"a":1.0,"b":2}') == json_of(' {"b":2, "a":1}') == fingerprint_of({"a": 1, "b": 2}, FingerprintRule())
    )
    assert json_of('{"a":1}', "application/order+json; v=1") == json_of('{"a": 1}')
    assert json_of('{"a":1}', "text/plain") != json_of('{"a": 1}', "text/plain")
    assert json_of("{not JSON") == fingerprint_of(b"{not JSON", FingerprintRule())
    assert print_of(intent={"body": "a", "headers": {"x": "y"}}) == print_of(intent={"body": "a"})
    assert print_of(intent={"body": "a"}, payload={"order": 1}) == fingerprint_of({"order": 1}, FingerprintRule())


def test_the_rule_of_the_namespace_counts_for_intents_too() -> None:
    scope = scope_with(exclude=("/at",), required=True)
    one, other = ({"content_type": "application/json", "body": f'{{"a":1,"at":{at}}}'} for at in (1, 2))
    assert print_of(scope, intent=one) == print_of(scope, intent=other) != print_of(SCOPE, intent=one)


def test_a_source_beside_payload_json() -> None:
    members: dict[str, object] = {"source": "mine", "request": RAW, "payload_json": "1"}
    assert refused_field("reserve", members, Dialect.MSGPACK, sourced()) == "payload_json"


def test_a_source_satisfies_a_namespace_that_wants_a_fingerprint() -> None:
    scope = replace(sourced(), policy=Policy(fingerprint=FingerprintRule(required=True)))
    assert command_from("reserve", {"source": "mine", "request": RAW}, scope, Dialect.JSON, in_batch=True)
