"""The HTTP app over real shards: every route, every refusal, every limit, and callers that hang up."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from hypercorn.typing import HTTPScope
from trio.testing import MockClock

from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.limits import BATCH_OPS_MAX, BODY_BYTES_MAX, OUTCOME_BODY_BYTES_MAX
from idemactor.server.http_app import build_app
from idemactor.server.operations import QUESTION_MS_MAX
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault
from idemactor.wire.openapi_gateways import METHODS
from tests.server.rig import START_MS, TOKENS, Rig, running

PROBLEM = "application/problem+json"
OPS = ("reserve", "accept", "commit", "release", "extend", "doubt", "resolve", "get", "forget")


class Client:
    """Speaks ASGI to the app, as the door does."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.app = build_app(rig.context)

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: list[tuple[str, str]] | None = None,
        *,
        content_type: str | None = "application/json",
        pieces: int = 1,
    ) -> Answer:
        data = json.dumps(body).encode() if isinstance(body, dict) else body or b""
        fields = list(headers or [])
        if content_type is not None and body is not None:
            fields.append(("content-type", content_type))
        step = max(1, -(-len(data) // pieces))
        parts = [data[start : start + step] for start in range(0, len(data), step)] or [b""]
        exchange = Exchange(self.app, method, path, fields)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            for index, part in enumerate(parts):
                exchange.send(part, more=index + 1 < len(parts))
            await exchange.done.wait()
        return exchange.answer()

    async def post(self, path: str, body: bytes | dict[str, Any] | None = None, **options: Any) -> Answer:
        return await self.call("POST", path, body, **options)

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.call("GET", path, **options)


class Answer:
    """A whole response."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = {name.decode().lower(): value.decode() for name, value in headers}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, status: int, code: str) -> dict[str, Any]:
        """Its members, once it is seen to be that problem."""
        assert (self.status, self.headers["content-type"]) == (status, PROBLEM), self.body
        told: dict[str, Any] = self.json
        assert {"type", "title", "status", "detail", "code"} <= told.keys()
        assert told["status"] == status
        assert told["code"] == f"IDEMPOTENCY_{code}"
        return told


class Exchange:
    """One request on its way, at the speed of the test."""

    def __init__(self, app: Any, method: str, path: str, headers: list[tuple[str, str]]) -> None:
        target, _, query = path.partition("?")
        self._app = app
        self._scope: HTTPScope = {  # type: ignore[typeddict-item]
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "extensions": {},
        }
        self._put, self._take = trio.open_memory_channel[dict[str, Any]](1_000)
        self.done = trio.Event()
        self._sent: list[dict[str, Any]] = []

    async def run(self) -> None:
        await self._app(self._scope, self._take.receive, self._send)
        self.done.set()

    def send(self, body: bytes, *, more: bool = False) -> None:
        self._put.send_nowait({"type": "http.request", "body": body, "more_body": more})

    def hang_up(self) -> None:
        self._put.send_nowait({"type": "http.disconnect"})

    @property
    def answered(self) -> bool:
        return bool(self._sent)

    def answer(self) -> Answer:
        start, *bodies = self._sent
        return Answer(start["status"], list(start["headers"]), b"".join(part["body"] for part in bodies))

    async def _send(self, message: Any) -> None:
        self._sent.append(message)


@contextlib.asynccontextmanager
async def serving(clock: MockClock, **options: Any) -> AsyncIterator[Client]:
    async with running(clock, **options) as rig:
        yield Client(rig)


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


# ------------------------------------------------------------------------------------------------- what succeeds


async def test_an_operation_from_reserve_to_replay(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        asked = {"key": "k1", "payload": {"a": 1}, "request_id": "r1", "holder": "h"}
        granted = await client.post("/v1/default/reserve", asked)
        assert (granted.status, granted.headers["content-type"]) == (201, "application/json")
        token = granted.json["token"]
        assert granted.json == {
            "result": "reserved",
            "proceed": True,
            "key": "k1",
            "token": token,
            "attempt": 1,
            "operation_id": granted.json["operation_id"],
            "reserved_at": START_MS,
            "lease_expires_at": START_MS + 300_000,
            "takeover": False,
            "repeated": False,
        }
        busy = (await client.post("/v1/default/reserve", {"key": "k1"})).problem(409, "IN_FLIGHT")
        assert (busy["result"], busy["proceed"], busy["attempt"], busy["holder"]) == ("in_flight", False, 1, "h")
        assert busy["retry_after_ms"] == 300_000
        assert "token" not in busy
        extended = await client.post("/v1/default/extend", {"key": "k1", "token": token, "lease_ms": 1_000})
        assert extended.json == {"result": "extended", "lease_expires_at": START_MS + 1_000}
        outcome = {"status": 201, "headers": [["x", "y"], ["x", "z"]], "body": "ü"}
        committed = await client.post("/v1/default/commit", {"key": "k1", "token": token, "outcome": outcome})
        assert committed.json == {"result": "committed", "expires_at": START_MS + 300_000, "repeated": False}
        replayed = await client.post("/v1/default/reserve", {"key": "k1"})
        assert replayed.status == 200
        assert (replayed.json["result"], replayed.json["proceed"]) == ("completed", False)
        assert replayed.json["outcome"] == outcome
        found = (await client.post("/v1/default/get", {"key": "k1"})).json
        assert (found["result"], found["record"]["state"]) == ("found", "committed")


async def test_the_other_commands(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        accepted = await client.post("/v1/default/accept", {"key": "a", "request_id": "r"})
        assert (accepted.status, accepted.json["result"], accepted.json["proceed"]) == (201, "accepted", True)
        token = (await client.post("/v1/default/reserve", {"key": "b"})).json["token"]
        released = await client.post("/v1/default/release", {"key": "b", "token": token, "reason": "no"})
        assert released.json == {"result": "released", "repeated": False}
        token = (await client.post("/v1/default/reserve", {"key": "c"})).json["token"]
        doubted = await client.post("/v1/default/doubt", {"key": "c", "token": token})
        assert doubted.json == {"result": "in_doubt", "repeated": False}
        (await client.post("/v1/default/reserve", {"key": "c"})).problem(409, "IN_DOUBT")
        (await client.post("/v1/default/forget", {"key": "c"})).problem(409, "UNSETTLED")
        resolved = await client.post("/v1/default/resolve", {"key": "c", "token": token, "verdict": "committed"})
        assert (resolved.status, resolved.json) == (200, {"result": "committed", "repeated": False})
        forgotten = await client.post("/v1/default/forget", {"key": "c"})
        assert forgotten.json == {"result": "forgotten"}
        (await client.post("/v1/default/forget", {"key": "c"})).problem(404, "UNKNOWN_KEY")


@pytest.mark.parametrize(
    "content_type", ["application/json", "APPLICATION/JSON; charset=utf-8", "application/a.b+json"]
)
async def test_what_is_json(content_type: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        answer = await client.post("/v1/default/reserve", {"key": "k"}, content_type=content_type)
        assert answer.status == 201


async def test_policy_health_and_document(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        policy = await client.get("/v1/trade/policy", headers=bearer("trade-token"))
        assert (policy.status, policy.json["lease_ms"], policy.json["on_duplicate"]) == (200, 5_000, "reject")
        assert policy.json["limits"]["batch_ops_max"] == BATCH_OPS_MAX
        assert (await client.get("/livez")).json == {"status": "ok"}
        assert (await client.get("/readyz")).json == {"status": "ready"}
        document = (await client.get("/openapi.json")).json
        assert document["openapi"].startswith("3.")


async def test_the_document_has_every_route_and_no_other(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        documented = {
            (method.upper(), path)
            for path, methods in (await client.get("/openapi.json")).json["paths"].items()
            for method in methods
        }
        served = {
            (method, re.sub("<([a-z_]+)>", "{}", rule.rule))
            for rule in client.app.url_map.iter_rules()
            # A rule without methods takes any; the document has some of them.
            for method in (rule.methods or {method.upper() for method in METHODS}) - {"HEAD", "OPTIONS"}
        }
        assert {(method, re.sub("{[a-z_]+}", "{}", path)) for method, path in documented} == served


# --------------------------------------------------------------------------------------------------- what does not


@pytest.mark.parametrize("op", OPS)
async def test_every_command_route(op: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        path = f"/v1/default/{op}"
        refused = (await client.post(path, {"key": "k"})).problem(401, "UNAUTHENTICATED")
        assert refused.get("proceed") == (False if op in ("reserve", "accept") else None)
        unknown = (await client.post("/v1/nowhere/" + op, {"key": "k"}, headers=bearer("operator-token"))).problem(
            404, "UNKNOWN_NAMESPACE"
        )
        assert unknown.get("proceed") == (False if op in ("reserve", "accept") else None)
        wrong = await client.get(path, headers=bearer("operator-token"))
        told = wrong.problem(405, "METHOD_NOT_ALLOWED")
        assert told.get("proceed") == (False if op in ("reserve", "accept") else None)
        assert set(wrong.headers["allow"].replace(" ", "").split(",")) == {"POST"}


async def test_a_method_that_a_path_has_not_is_told_those_that_it_has(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        allowed: dict[str, set[str]] = {}
        for rule in client.app.url_map.iter_rules():
            if rule.methods is not None:
                allowed.setdefault(re.sub("<.*?>", "default", rule.rule), set()).update(rule.methods)
        assert len(allowed) > 20
        for path, methods in allowed.items():
            for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"} - methods:
                wrong = await client.call(method, path)
                wrong.problem(405, "METHOD_NOT_ALLOWED")
                assert set(wrong.headers["allow"].split(", ")) == methods, (method, path)


async def test_a_challenge_comes_with_a_401(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        answer = await client.post("/v1/default/reserve", {"key": "k"}, headers=bearer("nobody"))
        answer.problem(401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == "Bearer"
        both = bearer("caller-token") * 2
        (await client.post("/v1/default/reserve", {"key": "k"}, headers=both)).problem(401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("token", "method", "path", "status", "code"),
    [
        ("caller-token", "POST", "/v1/default/forget", 403, "FORBIDDEN"),
        ("caller-token", "POST", "/v1/default/resolve", 403, "FORBIDDEN"),
        ("caller-token", "GET", "/v1/default/records", 403, "FORBIDDEN"),
        ("caller-token", "GET", "/v1/default/incidents", 403, "FORBIDDEN"),
        ("caller-token", "POST", "/v1/default/incidents/0-1/acknowledge", 403, "FORBIDDEN"),
        ("caller-token", "GET", "/metrics", 403, "FORBIDDEN"),
        ("metrics-token", "POST", "/v1/default/reserve", 403, "FORBIDDEN"),
        ("trade-token", "POST", "/v1/default/reserve", 403, "FORBIDDEN"),
        ("trade-token", "POST", "/v1/nowhere/reserve", 403, "FORBIDDEN"),
        ("trade-token", "GET", "/v1/default/policy", 403, "FORBIDDEN"),
        ("caller-token", "GET", "/v1/nowhere/policy", 404, "UNKNOWN_NAMESPACE"),
        ("caller-token", "POST", "/v1/No%20Name/reserve", 400, "INVALID_REQUEST"),
        (None, "GET", "/metrics", 401, "UNAUTHENTICATED"),
        (None, "GET", "/v1/default/policy", 401, "UNAUTHENTICATED"),
        (None, "GET", "/v1/default/records", 401, "UNAUTHENTICATED"),
        (None, "POST", "/v1/batch", 401, "UNAUTHENTICATED"),
        (None, "POST", "/v1/No%20Name/reserve", 401, "UNAUTHENTICATED"),
    ],
)
async def test_who_may_not(
    token: str | None, method: str, path: str, status: int, code: str, autojump_clock: MockClock
) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        headers = bearer(token) if token else []
        (await client.call(method, path, headers=headers)).problem(status, code)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/v1"),
        ("POST", "/v1/default/reserve/"),
        ("POST", "/v1//reserve"),
        ("POST", "/v1/default/nonsense"),
        ("POST", "/v1/a/b/reserve"),
        ("GET", "/static/x"),
        ("GET", "/v1/default/incidents/1"),
    ],
)
async def test_unknown_paths_are_problems(method: str, path: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        told = (await client.call(method, path, b"{}" if method == "POST" else None)).problem(404, "NOT_FOUND")
        assert told.get("proceed") == (False if path.endswith("/reserve") else None)


async def test_head_and_options(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        head = await client.call("HEAD", "/livez")
        assert (head.status, head.headers["content-type"]) == (200, "application/json")
        paths = ("/v1/default/reserve", "/v1/batch", "/v1/default/operations/x", "/livez", "/metrics", "/openapi.json")
        for path in paths:
            options = await client.call("OPTIONS", path)
            options.problem(405, "METHOD_NOT_ALLOWED")
            assert options.headers["allow"]
            assert "OPTIONS" not in options.headers["allow"]
        (await client.call("HEAD", "/v1/default/reserve")).problem(405, "METHOD_NOT_ALLOWED")
        (await client.call("PUT", "/v1/batch", b"{}")).problem(405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "key"),
        (b"{}", "key"),
        (b"[]", None),
        (b"null", None),
        (b"not json", None),
        (b'{"key":"k","key":"k"}', "key"),
        (b'{"key":"k"} ', "ok"),
        (b'{"key":"\xff"}', None),
        (b'{"key":"k","nonsense":1}', "nonsense"),
        (b'{"key":""}', "key"),
        (b'{"key":"a\\u0000b"}', "key"),
        (b'{"key":1}', "key"),
        (b'{"key":"k","lease_ms":0}', "lease_ms"),
        (b'{"key":"k","lease_ms":86400001}', "lease_ms"),
        (b'{"key":"k","lease_ms":1.0}', "lease_ms"),
        (b'{"key":"k","wait_ms":60001}', "wait_ms"),
        (b'{"key":"k","ttl_ms":1,"window_ms":1}', "window_ms"),
        (b'{"key":"k","fingerprint":"f","payload":1}', "payload"),
        (b'{"key":"k","payload_json":"1"}', "payload_json"),
        (b'{"key":"k","payload":' + b"[" * 70 + b"]" * 70 + b"}", None),
    ],
)
async def test_bodies_that_are_refused(body: bytes, field: str | None, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        answer = await client.post("/v1/default/reserve", body)
        if field == "ok":
            assert answer.status == 201
            return
        told = answer.problem(400, "INVALID_REQUEST")
        assert told["proceed"] is False
        assert told.get("field") == field
        assert "result" not in told


@pytest.mark.parametrize(
    "headers",
    [
        [("content-type", "text/plain")],
        [("content-type", "application/jsonp")],
        [("content-type", "text/json")],
        [("content-type", "multipart/form-data; boundary=x")],
        [("content-type", "")],
        [],
        [("content-type", "application/json"), ("content-type", "application/json")],
        [("content-type", "application/json"), ("content-encoding", "gzip")],
    ],
)
async def test_content_types_that_are_refused(headers: list[tuple[str, str]], autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        answer = await client.post("/v1/default/reserve", b'{"key":"k"}', headers=headers, content_type=None)
        assert answer.problem(415, "UNSUPPORTED_MEDIA_TYPE")["proceed"] is False


def body_of_size(size: int, **members: Any) -> bytes:
    data = json.dumps(members).encode()
    return data + b" " * (size - len(data))


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("op", [*OPS, "batch"])
async def test_the_size_of_a_body(op: str, announced: bool, autojump_clock: MockClock) -> None:
    bytes_max = OUTCOME_BODY_BYTES_MAX if op in ("commit", "accept", "resolve") else BODY_BYTES_MAX
    path = "/v1/batch" if op == "batch" else f"/v1/default/{op}"
    async with serving(autojump_clock) as client:
        for size, too_large in ((bytes_max, False), (bytes_max + 1, True)):
            headers = [("content-length", str(size))] if announced else []
            answer = await client.post(path, body_of_size(size, nonsense=1), headers=headers, pieces=40)
            if too_large:
                answer.problem(413, "TOO_LARGE")
            else:
                answer.problem(400, "INVALID_REQUEST")


async def test_a_body_that_is_too_large_is_not_read_to_its_end(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        exchange = Exchange(client.app, "POST", "/v1/default/reserve", [("content-type", "application/json")])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            exchange.send(b" " * (BODY_BYTES_MAX + 1), more=True)
            await exchange.done.wait()
        assert exchange.answer().problem(413, "TOO_LARGE")["proceed"] is False


async def test_a_length_over_the_limit_is_refused_before_the_body(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        headers = [("content-type", "application/json"), ("content-length", str(BODY_BYTES_MAX + 1))]
        exchange = Exchange(client.app, "POST", "/v1/default/reserve", headers)
        with trio.fail_after(1):
            await exchange.run()
        exchange.answer().problem(413, "TOO_LARGE")


# ---------------------------------------------------------------------------------------------- the key's header


@pytest.mark.parametrize(("value", "key"), [('"k 1"', "k 1"), ("k1", "k1"), ('"a\\"b"', 'a"b'), ('"k";p=1', "k")])
async def test_the_key_may_come_in_the_header(value: str, key: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        answer = await client.post("/v1/default/reserve", {}, headers=[("idempotency-key", value)])
        assert (answer.status, answer.json["key"]) == (201, key)
        both = await client.post("/v1/default/reserve", {"key": key}, headers=[("Idempotency-Key", value)])
        both.problem(409, "IN_FLIGHT")
        empty = await client.post("/v1/default/get", None, headers=[("Idempotency-Key", value)])
        assert empty.json["record"]["key"] == key


@pytest.mark.parametrize(
    "values",
    [["other"], ["k", "k"], [""], [" "], ['"k'], ["a,b"], ["a b"], ["k\xe9"], ['"a\x7fb"'], ["k" * 257]],
)
async def test_a_header_that_is_wrong_is_never_a_fallback(values: list[str], autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        headers = [("idempotency-key", value) for value in values]
        told = (await client.post("/v1/default/reserve", {"key": "k"}, headers=headers)).problem(400, "INVALID_REQUEST")
        assert (told["field"], told["proceed"]) == ("key", False)
        (await client.post("/v1/default/get", {"key": "k"})).problem(404, "UNKNOWN_KEY")


async def test_the_header_on_a_batch_and_on_a_get(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        headers = [("idempotency-key", "k")]
        (await client.post("/v1/batch", {"ops": []}, headers=headers)).problem(400, "INVALID_REQUEST")
        assert (await client.get("/v1/default/policy", headers=[("idempotency-key", "a,b")])).status == 200


# --------------------------------------------------------------------------------------------------------- batches


async def test_a_batch_answers_in_order_each_for_itself(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        ops: list[Any] = [
            {"op": "reserve", "namespace": "default", "key": "a"},
            {"op": "reserve", "namespace": "trade", "key": "a"},
            {"op": "reserve", "namespace": "default", "key": "a"},
            {"op": "reserve", "namespace": "default", "key": "b", "wait_ms": 5},
            {"op": "get", "namespace": "default", "key": "none"},
            {"op": "reserve", "namespace": "nowhere", "key": "a"},
            {"op": "forget", "namespace": "default", "key": "a"},
            {"op": "policy", "namespace": "default"},
            {"op": "reserve", "key": "a"},
            {"namespace": "default", "key": "a"},
            7,
            {"op": "commit", "namespace": "default", "key": "a", "token": 0},
        ]
        answer = await client.post("/v1/batch", {"ops": ops})
        assert answer.status == 200
        results = answer.json["results"]
        codes = [result.get("code", "").removeprefix("IDEMPOTENCY_") for result in results]
        invalid = "INVALID_REQUEST"
        assert codes == ["", "", "IN_FLIGHT", invalid, "UNKNOWN_KEY", "UNKNOWN_NAMESPACE", *[invalid] * 6]
        assert [result.get("result") for result in results[:3]] == ["reserved", "reserved", "in_flight"]
        assert results[0]["token"] > 0
        assert (results[2]["status"], results[2]["proceed"], results[2]["attempt"]) == (409, False, 1)
        assert results[3].keys() == {"code", "detail", "field", "proceed"}
        assert results[3]["proceed"] is False
        assert (results[11].keys(), results[11]["field"]) == ({"code", "detail", "field"}, "token")


@pytest.mark.parametrize("body", [{}, {"ops": None}, {"ops": {}}, {"ops": [], "x": 1}, {"ops": [0] * 1001}])
async def test_what_is_no_batch(body: dict[str, Any], autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        (await client.post("/v1/batch", body)).problem(400, "INVALID_REQUEST")


async def test_the_size_of_a_batch(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        assert (await client.post("/v1/batch", {"ops": []})).json == {"results": []}
        ops = [{"op": "accept", "namespace": "default", "key": f"k{n}"} for n in range(BATCH_OPS_MAX)]
        results = (await client.post("/v1/batch", {"ops": ops})).json["results"]
        assert [result["result"] for result in results] == ["accepted"] * BATCH_OPS_MAX


async def test_the_rights_of_a_batch_are_those_of_its_calls(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        ops = [
            {"op": "reserve", "namespace": "trade", "key": "a"},
            {"op": "reserve", "namespace": "default", "key": "a"},
            {"op": "resolve", "namespace": "trade", "key": "a", "token": 1, "verdict": "released"},
        ]
        answer = await client.post("/v1/batch", {"ops": ops}, headers=bearer("trade-token"))
        first, *others = answer.json["results"]
        assert first["result"] == "reserved"
        assert {other["code"] for other in others} == {"IDEMPOTENCY_FORBIDDEN"}


# -------------------------------------------------------------------------------------------------------- listings


async def test_a_listing_goes_through_all_shards(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, shards=3) as client:
        keys = {f"key-{n}" for n in range(25)}
        for key in sorted(keys):
            await client.post("/v1/default/reserve", {"key": key})
        await client.post("/v1/trade/reserve", {"key": "elsewhere"})
        seen: list[str] = []
        path, pages = "/v1/default/records?limit=4", 0
        while True:
            page = (await client.get(path)).json
            assert len(page["records"]) <= 4
            assert all(record["token"] > 0 and "outcome" not in record for record in page["records"])
            seen += [record["key"] for record in page["records"]]
            pages += 1
            if page["next"] is None:
                break
            assert len(page["records"]) == 4
            path = f"/v1/default/records?limit=4&cursor={page['next']}"
        assert len(seen) == len(keys)
        assert set(seen) == keys
        assert pages >= 7


@pytest.mark.parametrize(
    "query",
    ["state=odd", "limit=0", "limit=1001", "limit=1.0", "contested=1", "nonsense=1", "cursor=x", "limit=1&limit=2"],
)
async def test_filters_that_are_refused(query: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        told = (await client.get(f"/v1/default/records?{query}")).problem(400, "INVALID_REQUEST")
        assert told["field"] == query.partition("=")[0]


async def test_a_blank_filter_is_none_that_could_be(autojump_clock: MockClock) -> None:
    blank = {
        "/v1/default/records": ("state", "contested", "older_than_ms", "limit"),
        "/v1/default/incidents": ("limit",),
        "/v1/stuck": ("older_than_ms", "limit"),
    }
    async with serving(autojump_clock) as client:
        for path, names in blank.items():
            for query, name in ((f"{name}{end}", name) for name in names for end in ("=", "")):
                told = (await client.get(f"{path}?{query}")).problem(400, "INVALID_REQUEST")
                assert (path, told["field"]) == (path, name)


async def test_a_call_without_a_query_is_told_nothing_by_one(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        headers = bearer("operator-token")
        for method, path in (
            *(("POST", f"/v1/trade/{op}") for op in (*OPS, "dispatch", "key", "outbox/poll", "outbox/ack")),
            ("POST", "/v1/batch"),
            ("POST", "/v1/trade/incidents/0-1/acknowledge"),
            ("GET", "/v1/trade/policy"),
            ("GET", "/v1/shards"),
        ):
            body = None if method == "GET" else {"key": "k"}
            answer = await client.call(method, f"{path}?wait_ms=1&wait_ms=2", body, headers)
            told = answer.problem(400, "INVALID_REQUEST")
            assert told["field"] == "wait_ms"
            (await client.call(method, f"{path}?wait_ms=1", body)).problem(401, "UNAUTHENTICATED")
        assert (await client.post("/v1/trade/get", {"key": "k"}, headers=headers)).status == 404
        assert (await client.get("/metrics?collect=all", headers=headers)).status == 200
        assert (await client.get("/livez?now=1")).status == 200


async def test_filters(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        await client.post("/v1/trade/reserve", {"key": "lapsed"})
        await client.post("/v1/trade/accept", {"key": "done"})
        await trio.sleep(10)
        await client.post("/v1/trade/reserve", {"key": "pending"})
        for query, keys in (
            ("", {"lapsed", "done", "pending"}),
            ("?state=in_doubt", {"lapsed"}),
            ("?state=pending", {"pending"}),
            ("?state=committed", {"done"}),
            ("?older_than_ms=5000", {"lapsed", "done"}),
            ("?contested=true", set()),
        ):
            page = (await client.get(f"/v1/trade/records{query}")).json
            assert {record["key"] for record in page["records"]} == keys


async def test_incidents_are_listed_and_acknowledged(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        first = await client.post("/v1/trade/reserve", {"key": "k"}, headers=bearer("caller-token"))
        await trio.sleep(6)
        second = await client.post("/v1/trade/reserve", {"key": "k"}, headers=bearer("caller-token"))
        assert second.json["takeover"]
        late = await client.post(
            "/v1/trade/commit", {"key": "k", "token": first.json["token"]}, headers=bearer("caller-token")
        )
        assert late.problem(409, "STALE_TOKEN")["attempt"] == 2
        page = (await client.get("/v1/trade/incidents", headers=bearer("operator-token"))).json
        [incident] = page["incidents"]
        assert page["next"] is None
        assert (incident["token"], incident["present_token"]) == (first.json["token"], second.json["token"])
        path = f"/v1/trade/incidents/{incident['id']}/acknowledge"
        (await client.post(path, headers=bearer("other-token"))).problem(404, "NOT_FOUND")
        (await client.post(path, {"x": 1}, headers=bearer("operator-token"))).problem(400, "INVALID_REQUEST")
        assert (await client.post(path, headers=bearer("operator-token"))).json == {"result": "acknowledged"}
        (await client.post(path, headers=bearer("operator-token"))).problem(404, "NOT_FOUND")
        for wrong in ("9-1", "x", "0", "0-0", "-1-1"):
            path = f"/v1/trade/incidents/{wrong}/acknowledge"
            (await client.post(path, headers=bearer("operator-token"))).problem(404, "NOT_FOUND")
        assert (await client.get("/v1/trade/incidents", headers=bearer("operator-token"))).json["incidents"] == []


async def test_tokens_show_to_operators_only(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        await client.post("/v1/default/reserve", {"key": "k"}, headers=bearer("caller-token"))
        seen = [
            (await client.post("/v1/default/get", {"key": "k"}, headers=bearer(token))).json["record"]["token"]
            for token in ("caller-token", "operator-token")
        ]
        assert seen[0] is None
        assert seen[1] > 0
        (await client.post("/v1/default/get", {"key": "k"}, headers=bearer("other-token"))).problem(404, "UNKNOWN_KEY")


# ------------------------------------------------------------------------------------- overload, failure, shutdown


async def test_a_full_namespace(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        for key in ("a", "b"):
            assert (await client.post("/v1/small/accept", {"key": key})).status == 201
        told = (await client.post("/v1/small/reserve", {"key": "c"})).problem(429, "QUOTA_EXCEEDED")
        assert told["proceed"] is False
        assert "result" not in told
        ops = [{"op": "reserve", "namespace": "small", "key": "c"}]
        [result] = (await client.post("/v1/batch", {"ops": ops})).json["results"]
        assert result == {"code": "IDEMPOTENCY_QUOTA_EXCEEDED", "detail": result["detail"], "proceed": False}


async def test_a_full_mailbox(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, shards=1, mailbox_max=2) as client:
        ops = [{"op": "reserve", "namespace": "default", "key": str(n)} for n in range(5)]
        results = (await client.post("/v1/batch", {"ops": ops})).json["results"]
        overloaded = [result for result in results if result.get("code") == "IDEMPOTENCY_OVERLOADED"]
        assert len(overloaded) == 3
        assert all(result["proceed"] is False and "result" not in result for result in overloaded)


async def test_shutting_down(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        client.rig.context.draining = True
        client.rig.context.router.close()
        answer = await client.post("/v1/default/reserve", {"key": "k"})
        assert answer.problem(503, "OVERLOADED")["proceed"] is False
        assert int(answer.headers["retry-after"]) >= 1
        listing = await client.get("/v1/default/records")
        listing.problem(503, "OVERLOADED")
        assert int(listing.headers["retry-after"]) >= 1
        ready = await client.get("/readyz")
        ready.problem(503, "OVERLOADED")
        assert (await client.get("/livez")).status == 200


async def test_a_write_that_fails(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, shards=1) as client:
        client.rig.disks[0].faults.append(Fault(CommitResult.FAILED))
        answer = await client.post("/v1/default/reserve", {"key": "k"})
        assert answer.problem(503, "UNAVAILABLE")["proceed"] is False
        assert int(answer.headers["retry-after"]) >= 1
        assert (await client.post("/v1/default/reserve", {"key": "k"})).status == 201


async def test_a_quarantined_shard_makes_the_server_unready(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, shards=2) as client:
        disk = client.rig.disks[1]
        disk.faults.append(Fault(CommitResult.FAILED))
        disk.failing_opens = 1_000
        key = next(str(n) for n in range(100) if lives_in(client, str(n), 1))
        (await client.post("/v1/default/reserve", {"key": key})).problem(503, "UNAVAILABLE")
        (await client.post("/v1/default/reserve", {"key": key})).problem(503, "UNAVAILABLE")
        assert "1" in (await client.get("/readyz")).problem(503, "UNAVAILABLE")["detail"]
        metrics = (await client.get("/metrics")).body.decode()
        assert 'idemactor_shard_quarantined{shard="1"} 1.0' in metrics


def lives_in(client: Client, key: str, shard: int) -> bool:
    identity = Identity("default", "default", key)
    return shard_of(identity_hash(identity), len(client.rig.context.router.shards)) == shard


async def test_a_shard_that_says_nothing(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, shards=2, run=False) as client:
        started = trio.current_time()
        (await client.get("/readyz")).problem(503, "UNAVAILABLE")
        assert trio.current_time() - started == pytest.approx(1.0)
        metrics = (await client.get("/metrics")).body.decode()
        assert 'idemactor_shard_answers{shard="0"} 0.0' in metrics
        for method, path in (("GET", "records"), ("GET", "incidents"), ("POST", "incidents/0-1/acknowledge")):
            started = trio.current_time()
            told = await (client.get(f"/v1/default/{path}") if method == "GET" else client.post(f"/v1/default/{path}"))
            told.problem(503, "UNAVAILABLE")
            assert int(told.headers["retry-after"]) >= 1
            assert trio.current_time() - started == pytest.approx(QUESTION_MS_MAX / 1_000)


async def test_a_bug_is_a_problem_too(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("secret")

    async with serving(autojump_clock) as client:
        monkeypatch.setattr("idemactor.server.http_app.command_from", broken)
        told = (await client.post("/v1/default/reserve", {"key": "k"})).problem(500, "UNAVAILABLE")
        assert told["proceed"] is False
        assert "secret" not in json.dumps(told)


# --------------------------------------------------------------------------------------------- many, and those who go


async def test_of_64_concurrent_reserves_one_is_granted(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        statuses: list[int] = []

        async def reserve() -> None:
            statuses.append((await client.post("/v1/default/reserve", {"key": "k"})).status)

        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(reserve)
        assert sorted(statuses) == [201] + [409] * 63


async def test_a_command_that_was_read_whole_is_carried_out(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        exchange = Exchange(client.app, "POST", "/v1/default/accept", [("content-type", "application/json")])
        exchange.send(b'{"key":"k"}')
        exchange.hang_up()
        await exchange.run()
        assert (await client.post("/v1/default/get", {"key": "k"})).json["record"]["state"] == "committed"


async def test_a_hang_up_before_the_app_came_to_look(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:

        @client.app.before_request
        async def dawdle() -> None:
            for _ in range(5):
                await trio.lowlevel.checkpoint()

        exchange = Exchange(client.app, "POST", "/v1/default/accept", [("content-type", "application/json")])
        exchange.send(b'{"key":"k"}')
        exchange.hang_up()
        await exchange.run()
        assert (await client.post("/v1/default/get", {"key": "k"})).json["record"]["state"] == "committed"


async def test_a_hang_up_during_a_refusal_ends_the_request(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        exchange = Exchange(client.app, "POST", "/v1/default/accept", [("content-type", "text/plain")])
        exchange.send(b"x")
        exchange.hang_up()
        with trio.fail_after(1):
            await exchange.run()


async def test_a_command_that_was_not_is_not(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        exchange = Exchange(client.app, "POST", "/v1/default/accept", [("content-type", "application/json")])
        exchange.send(b'{"key":"k"}', more=True)
        exchange.hang_up()
        await exchange.run()
        assert not exchange.answered
        (await client.post("/v1/default/get", {"key": "k"})).problem(404, "UNKNOWN_KEY")


async def test_a_waiter_who_left_is_not_granted(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        token = (await client.post("/v1/default/reserve", {"key": "k"})).json["token"]
        async with trio.open_nursery() as nursery:
            gone, waiting = (
                Exchange(client.app, "POST", "/v1/default/reserve", [("content-type", "application/json")])
                for _ in range(2)
            )
            for exchange in (gone, waiting):
                exchange.send(b'{"key":"k","wait_ms":30000}')
                nursery.start_soon(exchange.run)
                await trio.testing.wait_all_tasks_blocked()
            gone.hang_up()
            await trio.testing.wait_all_tasks_blocked()
            await client.post("/v1/default/release", {"key": "k", "token": token})
            await waiting.done.wait()
        assert not gone.answered
        assert waiting.answer().status == 201


async def test_a_wait_that_ends_in_flight(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        await client.post("/v1/default/reserve", {"key": "k"})
        started = trio.current_time()
        answer = await client.post("/v1/default/reserve", {"key": "k", "wait_ms": 3_000})
        told = answer.problem(409, "IN_FLIGHT")
        assert trio.current_time() - started == pytest.approx(3.0, abs=0.01)
        assert (told["proceed"], answer.headers["retry-after"]) == (False, "5")


async def test_a_body_that_comes_byte_by_byte(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        answer = await client.post("/v1/default/reserve", b'{"key":"k"}', pieces=11)
        assert answer.status == 201


async def test_retry_after_is_what_is_left_rounded_up(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        await client.post("/v1/default/reserve", {"key": "k", "lease_ms": 2_500})
        answer = await client.post("/v1/default/reserve", {"key": "k"})
        assert answer.problem(409, "IN_FLIGHT")["retry_after_ms"] == 2_500
        assert answer.headers["retry-after"] == "3"


async def test_a_duplicate_may_be_rejected(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        await client.post("/v1/trade/accept", {"key": "k"})
        told = (await client.post("/v1/trade/reserve", {"key": "k"})).problem(409, "DUPLICATE")
        assert (told["result"], told["proceed"]) == ("completed", False)
        assert "outcome" not in told
        replayed = await client.post("/v1/trade/reserve", {"key": "k", "on_duplicate": "replay"})
        assert replayed.status == 200


async def test_metrics_say_what_happened_and_no_key(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        await client.post("/v1/default/reserve", {"key": "very-secret-key"}, headers=bearer("caller-token"))
        await client.post("/v1/default/reserve", {"key": 5}, headers=bearer("caller-token"))
        await trio.sleep(2)
        answer = await client.get("/metrics", headers=bearer("metrics-token"))
        text = answer.body.decode()
        assert answer.headers["content-type"].startswith("text/plain")
        for line in (
            'idemactor_commands_total{command="reserve",result="reserved"} 1.0',
            'idemactor_refused_total{code="IDEMPOTENCY_INVALID_REQUEST",door="http"} 1.0',
            'idemactor_pending{namespace="default",tenant="acme"} 1.0',
            "idemactor_oldest_pending_age_seconds 2.0",
        ):
            assert line in text
        assert "very-secret-key" not in text
