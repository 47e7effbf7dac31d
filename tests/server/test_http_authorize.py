"""Forward-auth over real shards: what is accepted, what is refused, and in which codes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from idemactor.core.commands import Commit
from idemactor.core.keys import Identity
from idemactor.core.record import Outcome
from idemactor.core.replies import Committed
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.source import Answers, Source
from idemactor.gateway.verify import Scheme, Verify
from idemactor.server import operations
from idemactor.server.http_shared import HANGING_UP_MS
from tests.server.rig import START_MS, TOKENS, running
from tests.server.test_http_app import Answer, Client, Exchange, bearer

Headers = list[tuple[str, str]]

SOURCES = {
    **SHIPPED,
    "signed": Source("signed", verify=Verify(Scheme.GITHUB, ("E",), ("secret",)), id=("header:X-GitHub-Delivery",)),
    "slow": replace(SHIPPED["http"], name="slow", retry_horizon_ms=400_000),
    "calm": replace(SHIPPED["http"], name="calm", answers=Answers(completed=200)),
    "soft": replace(SHIPPED["http"], name="soft", answers=Answers(in_flight=202, in_doubt=503, mismatch=400)),
}


@contextlib.asynccontextmanager
async def serving(clock: MockClock, **options: Any) -> AsyncIterator[Client]:
    async with running(clock, **options) as rig:
        rig.context.sources = SOURCES
        yield Client(rig)


def nginx(key: str | None = "k", *more: tuple[str, str], method: str = "POST", uri: str = "/orders") -> Headers:
    own = [("Idempotency-Key", key)] if key is not None else []
    return [("X-Original-Method", method), ("X-Original-URI", uri), *own, *more]


async def ask(client: Client, query: str, headers: Headers, *, method: str = "GET", call: str = "authorize") -> Answer:
    return await client.call(method, f"/v1/default/{call}?{query}", headers=headers)


# ------------------------------------------------------------------------------------------------------ leave to go on


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE", "PROPFIND", "BREW"])
async def test_once_and_no_more_with_any_method(method: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        first = await ask(client, "source=http&proceed=204&deny=403", nginx(), method=method)
        assert (first.status, first.body) == (204, b"")
        assert first.headers["x-idemactor-result"] == "accepted"
        assert first.headers["idempotency-takeover"] == "false"
        assert not first.headers.keys() & {"content-type", "content-length"}
        record = (await client.post("/v1/default/get", {"key": "k"})).json["record"]
        assert (record["state"], record["operation_id"]) == ("committed", first.headers["idempotency-operation-id"])
        again = await ask(client, "source=http&proceed=204&deny=403", nginx(), method=method)
        assert (again.status, again.headers["x-idemactor-result"]) == (403, "completed")
        assert "idempotency-operation-id" not in again.headers


async def test_the_gateways_own_retry_goes_on_and_the_senders_does_not(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        mine, other = ("X-Idemactor-Request-Id", "one"), ("X-Idemactor-Request-Id", "two")
        first = await ask(client, "", nginx("k", mine))
        again = await ask(client, "", nginx("k", mine))
        assert (first.status, again.status) == (200, 200)
        assert first.headers["idempotency-operation-id"] == again.headers["idempotency-operation-id"]
        assert (await ask(client, "", nginx("k", other))).status == 409
        assert (await ask(client, "", nginx("k"))).status == 409
        # The name under which clients send ids of their own, the same in every attempt, is not asked.
        assert (await ask(client, "", nginx("l", ("X-Request-Id", "same")))).status == 200
        assert (await ask(client, "", nginx("l", ("X-Request-Id", "same")))).status == 409


async def test_a_gateway_that_hung_up_is_not_asked_for_its_key(autojump_clock: MockClock) -> None:
    """Its sender was told no: the key stays free until the question is with a shard, and is taken from then on."""
    async with serving(autojump_clock) as client:
        for body in ([b""], [b"a", b"b"]):
            exchange = Exchange(client.app, "POST", "/v1/default/authorize?uri=/a", [("Idempotency-Key", "k")])
            for number, part in enumerate(body):
                exchange.send(part, more=number + 1 < len(body))
            exchange.hang_up()
            await exchange.run()
            await trio.sleep(HANGING_UP_MS / 1_000)
            assert not exchange.answered
            assert (await client.post("/v1/default/get", {"key": "k"})).status == 404
        assert (await ask(client, "uri=/a", [("Idempotency-Key", "k")], method="POST")).status == 200


async def test_a_takeover_says_so(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        held = (await client.post("/v1/default/reserve", {"key": "k", "lease_ms": 1})).json
        await trio.sleep(1)
        found = await ask(client, "", nginx())
        assert (found.status, found.headers["idempotency-takeover"]) == (200, "true")
        assert found.headers["idempotency-operation-id"] == held["operation_id"]


async def test_how_long_a_key_blocks_is_its_sources_matter(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        github = nginx(None, ("X-GitHub-Delivery", "d"), uri="/hooks")
        assert (await ask(client, "source=github", github)).status == 200
        record = (await client.post("/v1/default/get", {"key": "d"})).json["record"]
        assert record["expires_at"] == START_MS + SHIPPED["github"].ttl_ms  # type: ignore[operator]


# ------------------------------------------------------------------------------------------------------------ refusals


async def test_a_missing_key_is_an_error(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        told = (await ask(client, "source=http", nginx(None))).problem(400, "INVALID_REQUEST")
        assert (told["field"], told["proceed"]) == ("header:Idempotency-Key", False)
        told = (await ask(client, "source=http&deny=403", nginx(None))).problem(403, "INVALID_REQUEST")
        assert told["field"] == "header:Idempotency-Key"
        assert (await ask(client, "source=github", nginx("k"))).status == 200
        assert (await ask(client, "source=github", nginx(None))).json["field"] == "header:X-GitHub-Delivery"


async def test_an_id_that_envoy_joined(autojump_clock: MockClock) -> None:
    """It makes one header of two, with a comma: which delivery would that be?"""
    async with serving(autojump_clock) as client:
        own = {"Idempotency-Key": "http", "X-GitHub-Delivery": "github"}
        for name, source in own.items():
            for value in ("one,two", "one, two", '"one, two"', ","):
                found = await ask(client, f"source={source}&uri=/a", [(name, value)], method="POST")
                assert found.problem(400, "INVALID_REQUEST")["field"] == f"header:{name}"
        # Whoever does not join them shows both, and a comma is the sender's.
        comma = nginx(None, ("X-GitHub-Delivery", "one,two"))
        assert (await ask(client, "source=github", comma)).status == 200
        twice = nginx(None, ("X-GitHub-Delivery", "one"), ("X-GitHub-Delivery", "two"))
        assert (await ask(client, "source=github", twice)).json["field"] == "header:X-GitHub-Delivery"
        assert (await ask(client, "", nginx('"one, two"'))).status == 200


async def test_another_request_under_the_same_key(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        assert (await ask(client, "", nginx())).status == 200
        (await ask(client, "", nginx(uri="/orders?x=2"))).problem(422, "MISMATCH")
        (await ask(client, "", nginx(method="PATCH"))).problem(422, "MISMATCH")
        (await ask(client, "deny=401", nginx(method="PATCH"))).problem(401, "MISMATCH")
        (await ask(client, "source=soft", nginx(method="PATCH"))).problem(400, "MISMATCH")


async def test_a_request_without_its_body_says_nothing_about_one_with_it(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        path = "/v1/default/authorize?uri=/orders"
        key = [("Idempotency-Key", "k"), ("Content-Type", "application/json")]
        assert (await client.call("POST", path, {"a": 1}, key, content_type=None)).status == 200
        assert (await ask(client, "", nginx())).json["code"] == "IDEMPOTENCY_DUPLICATE"
        other = await client.call("POST", path, {"a": 2}, key, content_type=None)
        assert other.json["code"] == "IDEMPOTENCY_MISMATCH"


async def test_who_holds_the_key(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        held = (await client.post("/v1/default/reserve", {"key": "k", "holder": "h"})).json
        busy = await ask(client, "deny=403", nginx())
        assert busy.problem(403, "IN_FLIGHT")["holder"] == "h"
        assert (busy.headers["x-idemactor-result"], busy.headers["retry-after"]) == ("in_flight", "5")
        # A status that would let the request through is not told, whatever the source says.
        assert (await ask(client, "source=soft", nginx())).status == 409
        assert (await ask(client, "source=soft&deny=answer&uri=/orders", nginx())).status == 202
        await client.post("/v1/default/doubt", {"key": "k", "token": held["token"]})
        doubted = await ask(client, "", nginx())
        assert doubted.problem(409, "IN_DOUBT")["operation_id"] == held["operation_id"]
        assert (await ask(client, "source=soft", nginx())).status == 503


async def test_a_full_namespace_and_a_full_mailbox(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        for key in ("a", "b"):
            assert (await client.call("GET", "/v1/small/authorize", headers=nginx(key))).status == 200
        full = await client.call("GET", "/v1/small/authorize", headers=nginx("c"))
        full.problem(429, "QUOTA_EXCEEDED")
    async with serving(autojump_clock, mailbox_max=0, run=False) as client:
        full = await ask(client, "", nginx())
        assert full.problem(503, "OVERLOADED")["proceed"] is False
        assert full.headers["retry-after"]
        assert (await ask(client, "deny=403", nginx())).status == 403


# ------------------------------------------------------------------------------------------------------ stored answers

OUTCOME: dict[str, Any] = {
    "status": 201,
    "headers": [
        ["Content-Type", "text/plain"],
        ["Location", "/orders/7"],
        ["Link", "<a>"],
        ["Link", "<b>"],
        ["Set-Cookie", "session=1"],
        ["Date", "yesterday"],
        ["Transfer-Encoding", "chunked"],
        ["WWW-Authenticate", "Bearer"],
    ],
    "body": "order 7",
}


async def commit(client: Client, key: str, outcome: dict[str, Any] | None) -> None:
    token = (await client.post("/v1/default/reserve", {"key": key})).json["token"]
    body = {"key": key, "token": token} | ({"outcome": outcome} if outcome is not None else {})
    assert (await client.post("/v1/default/commit", body)).status == 200


async def test_a_stored_answer(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        token = (await client.post("/v1/default/reserve", {"key": "k"})).json["token"]
        # No door takes this last field; a file of an earlier release, or a gateway, may have stored it all the same.
        pairs = (*((name, value) for name, value in OUTCOME["headers"]), ("Etag", "with\ta\x01control"))
        outcome = Outcome(OUTCOME["status"], pairs, OUTCOME["body"].encode())
        command = Commit(Identity("default", "default", "k"), token, outcome)
        [answer] = await operations.carry_out(client.rig.context, [command], trio.Event())
        assert isinstance(answer, Committed)
        key = [("Idempotency-Key", "k")]
        found = await ask(client, "deny=answer&uri=/orders", key, method="POST")
        assert (found.status, found.body, found.headers["content-type"]) == (201, b"order 7", "text/plain")
        assert found.headers["idempotent-replayed"] == "true"
        assert found.headers["location"] == "/orders/7"
        assert not found.headers.keys() & {"set-cookie", "date", "transfer-encoding", "www-authenticate", "etag"}
        # Where any success lets a request through, none is told.
        refused = await ask(
            client, "proceed=204", [("X-Forwarded-Method", "POST"), ("X-Forwarded-Uri", "/orders"), *key]
        )
        assert "outcome" not in refused.problem(409, "DUPLICATE")
        assert (await ask(client, "deny=403", nginx())).status == 403


@pytest.mark.parametrize(
    ("stored", "query", "status"),
    [
        (200, "deny=answer&uri=/a", 203),
        (200, "proceed=204&deny=answer", 200),
        (204, "proceed=204&deny=answer", 200),
        (204, "deny=answer&uri=/a", 204),
        (206, "proceed=206&deny=answer", 200),
        (422, "deny=answer&uri=/a", 422),
        (500, "deny=answer&uri=/a", 500),
        (103, "deny=answer&uri=/a", 409),
    ],
)
async def test_a_stored_answer_never_lets_its_duplicate_through(
    stored: int, query: str, status: int, autojump_clock: MockClock
) -> None:
    async with serving(autojump_clock) as client:
        await commit(client, "k", {"status": stored})
        headers = [("Idempotency-Key", "k"), ("X-Forwarded-Method", "POST"), ("X-Forwarded-Uri", "/a")]
        found = await ask(client, query, headers, method="POST")
        assert (found.status, found.headers["x-idemactor-result"]) == (status, "completed")


@pytest.mark.parametrize(
    ("stored", "body", "length"),
    [(200, b"part", "4"), (204, b"", None), (205, b"", "0"), (206, b"part", "4"), (304, b"", None)],
)
async def test_a_stored_answer_is_well_formed(
    stored: int, body: bytes, length: str | None, autojump_clock: MockClock
) -> None:
    """What has no content is told without any, whatever was stored; a part says which one it is."""
    async with serving(autojump_clock) as client:
        told = [["Content-Type", "text/plain"], ["Content-Range", "bytes 0-3/9"], ["Content-MD5", "x"]]
        await commit(client, "k", {"status": stored, "headers": told, "body": "part"})
        headers = [("Idempotency-Key", "k"), ("X-Forwarded-Method", "POST"), ("X-Forwarded-Uri", "/a")]
        found = await ask(client, "proceed=299&deny=answer", headers)
        assert (found.status, found.body, found.headers.get("content-length")) == (stored, body, length)
        assert found.headers["content-range"] == "bytes 0-3/9"
        assert ("content-type" in found.headers) == bool(body)


async def test_without_a_stored_answer_it_is_as_the_source_says(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        headers = [("Idempotency-Key", "k"), ("X-Forwarded-Method", "POST"), ("X-Forwarded-Uri", "/a")]
        query = "proceed=204&deny=answer"
        assert (await ask(client, query, headers)).status == 204
        (await ask(client, query, headers)).problem(409, "DUPLICATE")
        # The key of another source is another sender's.
        (await ask(client, f"source=calm&{query}", headers)).problem(422, "MISMATCH")
        headers[0] = ("Idempotency-Key", "c")
        assert (await ask(client, f"source=calm&{query}", headers)).status == 204
        found = await ask(client, f"source=calm&{query}", headers)
        assert (found.status, found.json["result"], found.json["proceed"]) == (200, "completed", False)
        # A namespace that rejects duplicates does so here too.
        for status in (204, 409):
            answer = await client.call("GET", f"/v1/trade/authorize?source=calm&{query}", headers=headers)
            assert answer.status == status


async def test_what_is_accepted_is_kept_until_its_sender_is_done(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        assert (await ask(client, "source=slow", nginx())).status == 200
        record = (await client.post("/v1/default/get", {"key": "k"})).json["record"]
        assert record["expires_at"] - record["committed_at"] == 400_000


# ------------------------------------------------------------------------------------------------------ the second step


async def second(client: Client, word: str | None, headers: Headers, source: str = "http") -> Answer:
    said = [] if word is None else [("X-Idemactor-Result", word)]
    return await ask(client, f"source={source}&proceed=204&deny=403", [*headers, *said], call="verdict")


async def test_the_verdict_of_a_duplicate(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        await commit(client, "k", OUTCOME)
        found = await second(client, "completed", nginx())
        assert (found.status, found.body, found.headers["location"]) == (201, b"order 7", "/orders/7")
        (await second(client, "duplicate", nginx())).problem(409, "DUPLICATE")
        assert (await ask(client, "", nginx("l"))).status == 200
        (await second(client, "completed", nginx("l"))).problem(409, "DUPLICATE")
        assert (await second(client, "completed", nginx("l"), "calm")).json["result"] == "completed"


async def test_the_verdict_decides_nothing(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        for word in ("completed", "duplicate", "in_flight", "in_doubt"):
            told = await second(client, word, nginx())
            assert told.status == 409
            assert told.headers["retry-after"] == "1"
        assert (await client.post("/v1/default/get", {"key": "k"})).status == 404
        for no_word in ("accepted", "", "nonsense", None):
            refusal = (await second(client, no_word, nginx())).problem(400, "INVALID_REQUEST")
            assert refusal["field"] == "X-Idemactor-Result"
        twice = nginx("k", ("X-Idemactor-Result", "completed"))
        (await second(client, "completed", twice)).problem(400, "INVALID_REQUEST")


async def test_the_verdict_of_what_is_held(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        held = (await client.post("/v1/default/reserve", {"key": "k", "holder": "h"})).json
        busy = await second(client, "in_flight", nginx())
        assert busy.problem(409, "IN_FLIGHT")["holder"] == "h"
        assert busy.headers["retry-after"] == "5"
        await client.post("/v1/default/doubt", {"key": "k", "token": held["token"], "reason": "why"})
        assert (await second(client, "in_doubt", nginx())).problem(409, "IN_DOUBT")["reason"] == "why"
        # It tells what is, where that has changed since.
        assert (await second(client, "in_flight", nginx())).problem(409, "IN_DOUBT")


@pytest.mark.parametrize(
    ("word", "status", "code"),
    [
        ("mismatch", 422, "MISMATCH"),
        ("released", 409, "RELEASED"),
        ("quota_exceeded", 429, "QUOTA_EXCEEDED"),
        ("overloaded", 503, "OVERLOADED"),
        ("unavailable", 503, "UNAVAILABLE"),
        ("unauthenticated", 503, "UNAVAILABLE"),
    ],
)
async def test_the_verdict_of_a_word(word: str, status: int, code: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        assert (await second(client, word, nginx())).problem(status, code)["proceed"] is False


async def test_the_verdict_of_what_was_never_a_key(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        told = (await second(client, "invalid_request", nginx(None))).problem(400, "INVALID_REQUEST")
        assert told["field"] == "header:Idempotency-Key"


# -------------------------------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize("source", ["tradingview", "hoox", "stripe", "slack", "signed"])
async def test_a_source_that_needs_the_body(source: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        headers = nginx(None, ("X-GitHub-Delivery", "d"), ("Content-Type", "application/json"))
        told = (await ask(client, f"source={source}", headers)).problem(400, "INVALID_REQUEST")
        assert told["field"] == "body"
        assert "the gateway sent none" in told["detail"]
        assert source in told["detail"]


async def test_a_body_that_came_along(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        path = "/v1/default/authorize?source=tradingview&uri=/signals"
        sell, buy = ({"action": "sell"}, {"action": "buy"})
        answers = [
            (await client.call("POST", path, body, content_type="text/plain")).status for body in (sell, buy, sell)
        ]
        assert answers == [200, 200, 409]
        partial = [("X-Envoy-Auth-Partial-Body", "true")]
        told = (await client.call("POST", path, sell, partial)).problem(400, "INVALID_REQUEST")
        assert told["field"] == "body"
        large = await client.call("POST", path, b"x" * (1024 * 1024 + 1), content_type="text/plain")
        large.problem(413, "TOO_LARGE")


async def test_a_signature_that_is_not_the_senders(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        headers = [("X-GitHub-Delivery", "d"), ("X-Hub-Signature-256", "sha256=" + "0" * 64)]
        path = "/v1/default/authorize?source=signed&{}uri=/hooks"
        for deny, status in (("", 401), ("deny=403&", 403)):
            told = await client.call("POST", path.format(deny), {"a": 1}, headers)
            assert told.problem(status, "BAD_SIGNATURE")["field"] == "header:X-Hub-Signature-256"
            assert "www-authenticate" not in told.headers
            assert told.headers["x-idemactor-result"] == "bad_signature"
        assert (await client.post("/v1/default/get", {"key": "d"})).status == 404


# ------------------------------------------------------------------------------------------------------------ who asks


async def test_who_asks(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as client:
        for headers in (
            [],
            bearer("nobody"),
            [("X-Idemactor-Authorization", "Bearer nobody"), *bearer("caller-token")],
        ):
            told = (await ask(client, "deny=403", [*nginx(), *headers])).problem(401, "UNAUTHENTICATED")
            assert told["proceed"] is False
        (await ask(client, "", [*nginx(), *bearer("trade-token")])).problem(403, "FORBIDDEN")
        (await ask(client, "", [*nginx(), *bearer("metrics-token")])).problem(403, "FORBIDDEN")
        nowhere = await client.call("GET", "/v1/nowhere/authorize", headers=[*nginx(), *bearer("caller-token")])
        nowhere.problem(404, "UNKNOWN_NAMESPACE")
        assert (await ask(client, "", [*nginx(), *bearer("caller-token")])).status == 200
        # The other tenant has keys of its own, whatever the sender's own credentials are.
        own = [("X-Idemactor-Authorization", "Bearer other-token"), ("Authorization", "Bearer caller-token")]
        assert (await ask(client, "", [*nginx(), *own])).status == 200
        assert (await ask(client, "", [*nginx(), *own])).status == 409
        assert (await second(client, "completed", [*nginx(), *bearer("nobody")])).status == 401


async def test_a_question_that_is_wrong(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        for query, field in (
            ("source=nobody", "source"),
            ("deny=200", "deny"),
            ("proceed=403&deny=403", "proceed"),
            ("x=1", "x"),
            ("deny=answer", "deny"),
        ):
            told = (await ask(client, query, nginx())).problem(400, "INVALID_REQUEST")
            assert (told["field"], told["proceed"]) == (field, False)
        assert (await client.post("/v1/default/get", {"key": "k"})).status == 404
        told = (await ask(client, "", [("Idempotency-Key", "k")])).problem(400, "INVALID_REQUEST")
        assert told["field"] == "X-Original-URI"
        told = (await ask(client, "", nginx("k", *[("X-Idemactor-Request-Id", "a")] * 2))).problem(
            400, "INVALID_REQUEST"
        )
        assert told["field"] == "X-Idemactor-Request-Id"
