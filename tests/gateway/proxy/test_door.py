"""The proxy over real shards: what is forwarded, what is replayed, and what a misbehaving upstream leaves behind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.core.commands import Commit, Reserve, Resolve, Verdict
from idemactor.core.keys import Identity
from idemactor.core.record import Outcome, State
from idemactor.core.replies import Completed, Reserved
from idemactor.errors import Code
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.proxy import answers
from idemactor.gateway.proxy.answers import replay
from idemactor.gateway.proxy.client_side import ClientAnswer, rendered
from idemactor.gateway.proxy.limits import ProxyLimits
from idemactor.gateway.proxy.routes import OrderIdForm, RouteAuth, SuccessRule
from idemactor.gateway.source import Answers, Verify
from idemactor.gateway.verify import Scheme
from idemactor.observability.observer import Observer
from idemactor.server.backlog import FULL_SHARE
from idemactor.storage.base import Batch
from tests.gateway.proxy.rig import LEASE_MS, ROUTE, Client, Proxy, Received, Told, proxying
from tests.server.rig import TOKENS

SOFT = replace(ROUTE, success=SuccessRule("/success", True))
BODY = b'{"symbol": "BTCUSDT"}'
JSON = [("Content-Type", "application/json")]


OTHER_SPELLINGS = ("X_Forwarded_For", "x_real_ip", "Content_Length", "Transfer_Encoding", "Idempotency_Key", "X.Hop")


def result_of(told: Told) -> object:
    return json.loads(told.body).get("result")


# ----------------------------------------------------------------------------------------------------- the way it works


async def test_a_repeat_is_answered_byte_for_byte(autojump_clock: MockClock) -> None:
    packed = gzip.compress(b'{"order": 7}')
    sent = [
        ("Server", "x"),
        ("Date", "then"),
        ("content-TYPE", "application/json"),
        ("Content-Encoding", "gzip"),
        ("Set-Cookie", "a=1"),
        ("Location", "/orders/7"),
        ("Link", "</a>"),
        ("Link", "</b>"),
        ("X-Order", "7"),
        ("X-Private", "p"),
    ]

    async def answer(received: Received) -> None:
        await received.answer(201, packed, sent, reason="Made")

    async with proxying(
        autojump_clock, replace(ROUTE, replay_headers=frozenset({"x-order"})), behaviour=answer
    ) as proxy:
        first = await proxy.call(body=BODY)
        second = await proxy.call(body=BODY)
        assert (first.status, first.reason, first.body) == (201, "Made", packed)
        assert first.headers == [*sent, ("Content-Length", str(len(packed)))]
        assert (second.status, second.body) == (201, packed)
        stored = [sent[2], sent[3], sent[5], sent[6], sent[7], sent[8], ("Idempotent-Replayed", "true")]
        assert second.headers[: len(stored)] == stored
        assert [name for name, _ in second.headers[len(stored) :]] == ["Date", "Content-Length"]
        assert len(proxy.upstream.requests) == 1


async def test_replays_count_until_their_clients_have_read_them(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, held = b"x" * 60_000, []

    async def answer(received: Received) -> None:
        await received.answer(201, large)

    async def whole(client: ClientAnswer, told: answers.Whole) -> None:
        held.append(backlog.held_bytes)
        await send(client, told)

    send = ClientAnswer.whole
    async with proxying(autojump_clock, behaviour=answer) as proxy:
        backlog = proxy.rig.context.backlog
        assert (await proxy.call(body=BODY)).body == large
        monkeypatch.setattr(ClientAnswer, "whole", whole)
        assert (await proxy.call(body=BODY)).body == large
        # Where nobody is told anything large, the stored status is left, and no leave to go on.
        backlog.waiting_bytes = backlog.bytes_max * FULL_SHARE + 1
        told = await proxy.call(body=BODY)
        assert json.loads(told.body)["outcome"] == {"status": 201, "headers": [], "omitted": True}
        assert told.header("Idempotent-Replayed") == ["true"]
        assert held[0] >= len(large)
        assert (held[1:], backlog.held_bytes, len(proxy.upstream.requests)) == ([0], 0, 1)


async def test_what_the_upstream_gets(autojump_clock: MockClock) -> None:
    spoofed = [
        ("Idempotency-Operation-Id", "mine"),
        ("idempotency_takeover", "true"),
        ("Idempotent-Replayed", "true"),
        ("X-Forwarded-For", "6.6.6.6"),
        ("Connection", "X-Hop, Idempotency-Key"),
        ("X-Hop", "1"),
        ("Expect", "100-continue"),
        ("X-Kept", "caf\xe9"),
        *((name, "1") for name in OTHER_SPELLINGS),
    ]
    async with proxying(autojump_clock) as proxy:
        await proxy.call("PATCH", "/orders/1%2F2?a=b", BODY, spoofed, key='"k"')
        [got] = proxy.upstream.requests
        record = await proxy.record()
        assert record is not None
        assert (got.method, got.target, got.body) == ("PATCH", "/orders/1%2F2?a=b", BODY)
        assert got.header("Idempotency-Operation-Id") == [record.operation_id]
        assert got.header("Idempotency-Attempt") == ["1"]
        assert got.header("Idempotency-Key") == ['"k"']
        assert got.header("X-Forwarded-For") == ["unknown"]
        assert got.header("Host") == ["shop.test"]
        assert got.header("X-Kept") == ["caf\xe9"]
        assert got.header("Content-Length") == [str(len(BODY))]
        names = {name.lower() for name, _ in got.headers}
        assert names.isdisjoint(
            {"idempotency_takeover", "idempotent-replayed", "x-hop", "connection", "expect", "transfer-encoding"}
        )
        assert names.isdisjoint(name.lower() for name in OTHER_SPELLINGS)


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_client_cannot_take_out_its_host(autojump_clock: MockClock, method: str) -> None:
    async with proxying(autojump_clock) as proxy:
        for number, options in enumerate(("host", "Host, close", "x-forwarded-host, HOST")):
            await proxy.call(method, headers=[("Connection", options)], key=f"k{number}")
        for got in proxy.upstream.requests:
            assert (got.header("Host"), got.header("X-Forwarded-Host")) == (["shop.test"], ["shop.test"])
        assert len(proxy.upstream.requests) == 3


async def test_the_operation_goes_on_as_an_exchanges_order_id(autojump_clock: MockClock) -> None:
    route = replace(
        ROUTE,
        operation_header="X-Client-Order-Id",
        operation_form=OrderIdForm.BINANCE,
        operation_prefix="x-",
        preserve_host=False,
    )
    async with proxying(autojump_clock, route) as proxy:
        await proxy.call(headers=[("x_client_order_id", "mine")])
        [got] = proxy.upstream.requests
        [order_id] = got.header("X-Client-Order-Id")
        assert len(order_id) == 24
        assert order_id.startswith("x-")
        assert got.header("x_client_order_id") == []
        assert got.header("Host") == ["upstream.test"]


async def test_two_hundred_at_once_are_one_call(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(5)
        await received.answer(200, b"done")

    told: list[Told] = []

    async def one(proxy: Proxy) -> None:
        told.append(await proxy.call(body=BODY))

    route = replace(ROUTE, wait_ms=20_000)
    async with proxying(autojump_clock, route, behaviour=slow) as proxy, trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(one, proxy)
    assert {(answer.status, answer.body) for answer in told} == {(200, b"done")}
    assert len([answer for answer in told if answer.header("Idempotent-Replayed")]) == 199
    assert len(proxy.upstream.requests) == 1


async def test_in_flight_is_told_at_once_where_the_route_does_not_wait(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(5)
        await received.answer(200)

    async with proxying(autojump_clock, behaviour=slow) as proxy, trio.open_nursery() as nursery:
        nursery.start_soon(proxy.call)
        await trio.sleep(1)
        told = await proxy.call()
        assert (told.status, result_of(told), told.header("Retry-After")) == (409, "in_flight", ["5"])
    assert len(proxy.upstream.requests) == 1


async def test_another_request_under_the_same_key_is_refused(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        await proxy.call(body=BODY, headers=JSON)
        assert (await proxy.call(body=b'{"symbol":"BTCUSDT"}', headers=JSON)).header("Idempotent-Replayed")
        for told in (
            await proxy.call(body=b'{"symbol": "ETHUSDT"}', headers=JSON),
            await proxy.call(target="/orders?x", body=BODY, headers=JSON),
            await proxy.call("PATCH", body=BODY, headers=JSON),
        ):
            assert (told.status, result_of(told)) == (422, "mismatch")
        assert len(proxy.upstream.requests) == 1


async def test_two_tenants_have_each_their_own(autojump_clock: MockClock) -> None:
    route = replace(ROUTE, auth=RouteAuth.BEARER)
    async with proxying(autojump_clock, route, tokens=TOKENS) as proxy:
        for token in ("caller-token", "other-token", "caller-token"):
            told = await proxy.call(body=BODY, headers=[("Authorization", f"Bearer {token}")])
            assert told.status == 200
        assert len(proxy.upstream.requests) == 2
        assert [got.header("Authorization") for got in proxy.upstream.requests] == [[], []]
        assert await proxy.record(tenant="acme") is not None
        assert await proxy.record(tenant="other") is not None


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("auth", list(RouteAuth))
async def test_a_token_of_ours_is_never_handed_on(autojump_clock: MockClock, auth: RouteAuth, method: str) -> None:
    """Whatever the route asks for, and whichever field a client put it into; what is not ours goes on."""
    route = replace(ROUTE, auth=auth, auth_header="x-api-auth", tenant="acme")
    ours = ("Authorization", "authorization", "X_Api_Auth", "X-Other")
    headers = [(name, f"bEARER  {token}") for name in ours for token in ("caller-token", "operator-token")]
    theirs = [("X-Theirs", "Bearer theirs"), ("Authorization", "Basic eA=="), ("X-Kept", "caller-token, or so")]
    async with proxying(autojump_clock, route, tokens=TOKENS) as proxy:
        shown = [("X-Api-Auth", "Bearer caller-token")]
        assert (await proxy.call(method, body=BODY, headers=[*headers, *theirs, *shown])).status == 200
        [got] = proxy.upstream.requests
        assert [pair for pair in got.headers if pair[0] in {name for name, _ in [*headers, *theirs, *shown]}] == theirs


async def test_where_there_are_no_tokens_none_is_ours(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        await proxy.call(headers=[("Authorization", "Bearer caller-token")])
        [got] = proxy.upstream.requests
        assert got.header("Authorization") == ["Bearer caller-token"]


@pytest.mark.parametrize("headers", [[], [("Authorization", "Bearer nobody")], [("Authorization", "Basic eA==")]])
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_who_is_unknown_reaches_nothing(
    autojump_clock: MockClock, headers: list[tuple[str, str]], method: str
) -> None:
    route = replace(ROUTE, auth=RouteAuth.BEARER, namespace="open")
    async with proxying(autojump_clock, route, tokens=TOKENS, run=False) as proxy:
        told = await proxy.call(method, headers=headers)
        assert (told.status, told.header("WWW-Authenticate")) == (401, ["Bearer"])
        assert not proxy.upstream.requests


async def test_a_route_that_asks_for_tokens_lets_nobody_in_where_there_are_none(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, replace(ROUTE, auth=RouteAuth.BEARER)) as proxy:
        for headers in ([], [("Authorization", "Bearer made-up")]):
            assert (await proxy.call(headers=headers)).status == 401
        assert not proxy.upstream.requests


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "MADE-UP"])
@pytest.mark.parametrize("require_key", [True, False])
async def test_what_no_signature_is_looked_at_for_is_not_let_through(
    autojump_clock: MockClock, method: str, *, require_key: bool
) -> None:
    signed = replace(SHIPPED["github"], verify=Verify(Scheme.GITHUB, ("S",), ("made-up",)))
    route = replace(ROUTE, source="github", require_key=require_key)
    async with proxying(autojump_clock, route, sources={"github": signed}) as proxy:
        told = await proxy.call(method, body=BODY)
        assert (told.status, told.header("Allow")) == (405, ["PATCH, POST"])
        if method != "HEAD":
            assert json.loads(told.body)["code"] == "IDEMPOTENCY_METHOD_NOT_ALLOWED"
        assert not proxy.upstream.requests


async def test_nothing_is_forgotten_before_its_sender_is_done(autojump_clock: MockClock) -> None:
    slow = replace(SHIPPED["http"], name="slow", retry_horizon_ms=400_000)
    async with proxying(autojump_clock, replace(ROUTE, source="slow"), sources={"slow": slow}) as proxy:
        assert (await proxy.call()).status == 200
        record = await proxy.record()
        assert record is not None
        assert record.committed_at is not None
        assert record.expires_at == record.committed_at + 400_000


async def test_what_is_told_of_requests(autojump_clock: MockClock) -> None:
    """Of those that were let in to those who look on, and of a forgery the name of its source."""
    seen: list[tuple[str, str]] = []
    forged: list[str] = []

    class Forged(Observer):
        def forged(self, source: str) -> None:
            forged.append(source)

    def watch(op: str, identity: Identity, members: Mapping[str, object]) -> None:
        assert members.keys() == {"source", "request"}
        seen.append((op, identity.key))

    signed = replace(SHIPPED["github"], verify=Verify(Scheme.GITHUB, ("S",), ("made-up",)))
    routes = ROUTE, replace(ROUTE, prefix="/hooks", source="github")
    sources = {**SHIPPED, "github": signed}
    async with proxying(autojump_clock, *routes, sources=sources, watch=watch, observer=Forged()) as proxy:
        assert (await proxy.call()).status == 200
        told = await proxy.call("POST", "/hooks", BODY, [("X-Hub-Signature-256", "sha256=" + "0" * 64)])
        assert (told.status, told.header("WWW-Authenticate")) == (401, [])
        assert json.loads(told.body)["code"] == Code.BAD_SIGNATURE
        assert len(proxy.upstream.requests) == 1
    assert (seen, forged) == ([("reserve", "k")], ["github"])


async def test_keys_are_required_or_not(autojump_clock: MockClock) -> None:
    loose = replace(ROUTE, prefix="/loose", require_key=False)
    async with proxying(autojump_clock, ROUTE, loose) as proxy:
        told = await proxy.call(key=None)
        assert (told.status, json.loads(told.body)["field"]) == (400, "header:Idempotency-Key")
        for _ in range(2):
            assert (await proxy.call(target="/loose", key=None)).status == 200
        assert (await proxy.call(target="/loose", key='"broken')).status == 400
        assert len(proxy.upstream.requests) == 2


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods_pass_untouched(autojump_clock: MockClock, method: str) -> None:
    async with proxying(autojump_clock) as proxy:
        for _ in range(2):
            assert (await proxy.call(method, body=b"x")).body == b'{"success": true}'
        assert len(proxy.upstream.requests) == 2
        assert all(not got.header("Idempotency-Operation-Id") for got in proxy.upstream.requests)
        assert await proxy.record() is None


@pytest.mark.parametrize(
    ("method", "headers", "field"),
    [
        ("post", [], "method"),
        ("PATCh", [], "method"),
        ("GET", [("X-HTTP-Method-Override", "post")], "header:X-HTTP-Method-Override"),
    ],
)
async def test_no_protected_method_passes_as_another(
    autojump_clock: MockClock, method: str, headers: list[tuple[str, str]], field: str
) -> None:
    async with proxying(autojump_clock) as proxy:
        told = await proxy.call(method, body=b"x", headers=headers)
        assert (told.status, json.loads(told.body)["field"]) == (400, field)
        assert not proxy.upstream.requests


async def test_what_no_route_leads_to(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        assert (await proxy.call(target="/other")).status == 404
        assert (await proxy.call(target="/other/../orders")).status == 400
        assert not proxy.upstream.requests


# ------------------------------------------------------------------------------------------------- how answers are read


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_definite_failure_frees_the_key(autojump_clock: MockClock, status: int) -> None:
    async def refuse(received: Received) -> None:
        await received.answer(status, b"no")

    async with proxying(autojump_clock, behaviour=refuse) as proxy:
        for _ in range(2):
            told = await proxy.call()
            assert (told.status, told.body, told.header("Idempotent-Replayed")) == (status, b"no", [])
        assert len(proxy.upstream.requests) == 2
        assert await proxy.record() is None


async def test_a_definite_failure_may_be_kept(autojump_clock: MockClock) -> None:
    async def refuse(received: Received) -> None:
        await received.answer(422, b"no")

    route = replace(ROUTE, store_failures=True)
    async with proxying(autojump_clock, route, behaviour=refuse) as proxy:
        for replayed in ([], ["true"]):
            told = await proxy.call()
            assert (told.status, told.body, told.header("Idempotent-Replayed")) == (422, b"no", replayed)
        assert len(proxy.upstream.requests) == 1


async def test_a_soft_failure_frees_the_key(autojump_clock: MockClock) -> None:
    async def refuse(received: Received) -> None:
        await received.answer(200, b'{"success": false}')

    async with proxying(autojump_clock, SOFT, behaviour=refuse) as proxy:
        assert (await proxy.call()).body == b'{"success": false}'
        assert await proxy.record() is None


async def test_too_many_requests_are_passed_on_to_try_again(autojump_clock: MockClock) -> None:
    answers = [(429, b"later"), (200, b"done")]

    async def busy(received: Received) -> None:
        await received.answer(*answers.pop(0), [("Retry-After", "7")])

    async with proxying(autojump_clock, behaviour=busy) as proxy:
        told = await proxy.call()
        assert (told.status, told.body, told.header("Retry-After")) == (429, b"later", ["7"])
        assert (await proxy.call()).body == b"done"


async def cut_before(received: Received) -> None:
    await received.stream.aclose()


async def cut_in_head(received: Received) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    await received.stream.aclose()


async def cut_after_head(received: Received) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    await received.stream.aclose()


async def cut_in_body(received: Received) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc")
    await received.stream.aclose()


async def silent(_received: Received) -> None:
    await trio.sleep_forever()


async def stalls_in_body(received: Received) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc")
    await trio.sleep_forever()


async def not_http(received: Received) -> None:
    await received.send(b"SSH-2.0-OpenSSH\r\n\r\n")


async def switches(received: Received) -> None:
    await received.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")


async def endless_head(received: Received) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000)


async def endless_informing(received: Received) -> None:
    await received.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)


async def two_lengths(received: Received) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n123456")


BROKEN = [
    *(cut_before, cut_in_head, cut_after_head, cut_in_body, silent, stalls_in_body, not_http, switches, endless_head),
    *(endless_informing, two_lengths),
]


@pytest.mark.parametrize("behaviour", BROKEN, ids=lambda one: one.__name__)
async def test_no_whole_answer_leaves_in_doubt(
    autojump_clock: MockClock, behaviour: Callable[[Received], Awaitable[None]]
) -> None:
    async with proxying(autojump_clock, behaviour=behaviour) as proxy:
        told = await proxy.call()
        assert (told.status, result_of(told)) == (409, "in_doubt")
        record = await proxy.record()
        assert record is not None
        assert record.state is State.DOUBTED
        assert json.loads(told.body)["operation_id"] == record.operation_id
        again = await proxy.call()
        assert (again.status, result_of(again), json.loads(again.body)["reason"]) == (409, "in_doubt", record.reason)
        assert len(proxy.upstream.requests) == 1


@pytest.mark.parametrize("status", [302, 304, 405, 409, 500, 502, 503, 504])
async def test_an_answer_that_says_nothing_of_the_effect_leaves_in_doubt(
    autojump_clock: MockClock, status: int
) -> None:
    async def answer(received: Received) -> None:
        await received.answer(status, b"" if status == 304 else b"hm")

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        assert (await proxy.call()).status == status
        told = await proxy.call()
        assert (told.status, result_of(told)) == (409, "in_doubt")
        assert json.loads(told.body)["reason"] == f"the upstream answered {status}"
        assert len(proxy.upstream.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"success": "yes"}', b""])
async def test_an_answer_that_cannot_be_read_leaves_in_doubt(autojump_clock: MockClock, body: bytes) -> None:
    async def answer(received: Received) -> None:
        await received.answer(200, body)

    async with proxying(autojump_clock, SOFT, behaviour=answer) as proxy:
        told = await proxy.call()
        assert (told.status, told.body) == (200, body)
        assert result_of(await proxy.call()) == "in_doubt"


async def test_what_is_in_doubt_is_resolved(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, behaviour=cut_before) as proxy:
        await proxy.call()
        record = await proxy.record()
        assert record is not None
        await proxy.ask(Resolve(Identity("default", "default", "k"), record.token, Verdict.COMMITTED))
        told = await proxy.call()
        assert (told.status, result_of(told)) == (SHIPPED["http"].answers.completed, "completed")
        assert told.header("Idempotent-Replayed") == ["true"]
        assert len(proxy.upstream.requests) == 1


@pytest.mark.parametrize("outcome", [None, Outcome(201, omitted=True)])
def test_what_a_repeat_is_told_without_a_stored_answer(outcome: Outcome | None) -> None:
    answer = Completed("op", 1, 2, outcome, rejected=False)
    for status, kind in ((200, "application/json"), (409, "application/problem+json")):
        told = replay(answer, Answers(completed=status))
        assert (told.status, dict(told.headers)["Content-Type"]) == (status, kind)
        members = json.loads(told.body)
        assert (members["result"], members["proceed"], members["operation_id"]) == ("completed", False, "op")
        assert (members.get("code"), members.get("status")) == (
            ("IDEMPOTENCY_DUPLICATE", 409) if status > 400 else (None, None)
        )


async def test_an_outcome_that_came_over_another_door_is_sent_as_far_as_it_can_be(autojump_clock: MockClock) -> None:
    pairs = (("X-Name", "schl\u00fcssel \u20ac"), ("bad name", "x"), ("Transfer-Encoding", "chunked"), ("A", "b"))
    async with proxying(autojump_clock) as proxy:
        for key, status in (("a", 201), ("b", 100)):
            granted = await proxy.ask(Reserve(Identity("default", "default", key)))
            assert isinstance(granted, Reserved)
            await proxy.ask(Commit(Identity("default", "default", key), granted.token, Outcome(status, pairs, b"x")))
        told = await proxy.call(key="a")
        assert (told.status, told.body, told.header("Transfer-Encoding"), told.header("A")) == (201, b"x", [], ["b"])
        assert told.header("X-Name")[0].encode("latin-1").decode() == "schl\u00fcssel \u20ac"
        assert result_of(await proxy.call(key="b")) == "completed"
        assert not proxy.upstream.requests


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\x00", "\x0b", "\x7f"])
async def test_a_stored_field_cannot_become_two(end: str, autojump_clock: MockClock) -> None:
    """No door stores such a field; a record that has one all the same, from whatever wrote the file, is not sent on."""
    pairs = (
        ("Location", f"/x{end}Set-Cookie: stolen=1"),
        (f"X-Bad{end}Set-Cookie: stolen", "1"),
        ("ETag", f"{end}{end}<html>"),
        ("Content-Type", "text/plain"),
    )
    async with proxying(autojump_clock) as proxy:
        granted = await proxy.ask(Reserve(Identity("default", "default", "k")))
        assert isinstance(granted, Reserved)
        await proxy.ask(Commit(Identity("default", "default", "k"), granted.token, Outcome(200, pairs, b"x")))
        client = proxy.client()
        await client.send(key="k", headers=[("Connection", "close")])
        got = await client.rest()
    head, _, body = got.partition(b"\r\n\r\n")
    assert body == b"x"
    assert b"stolen" not in head
    assert b"html" not in head
    assert b"Content-Type: text/plain" in head


async def test_a_namespace_without_patience_is_answered_all_the_same(autojump_clock: MockClock) -> None:
    async def slow(_batch: Batch) -> None:
        await trio.sleep(0.5)

    async with proxying(autojump_clock, replace(ROUTE, namespace="hasty")) as proxy:
        for disk in proxy.rig.disks:
            disk.before_commit = slow
        assert (await proxy.call()).status == 200


async def test_the_head_has_to_come_in_time(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(2)
        await received.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
        await trio.sleep(20)
        await received.send(b"x")

    for first_byte_ms, body in ((1_000, None), (3_000, b"x")):
        async with proxying(autojump_clock, replace(ROUTE, first_byte_ms=first_byte_ms), behaviour=slow) as proxy:
            told = await proxy.call()
            assert told.body == body or (body is None and result_of(told) == "in_doubt")


async def test_nobody_at_home_frees_the_key(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        proxy.upstream.refuses = True
        told = await proxy.call()
        assert (told.status, told.header("Retry-After")) == (502, ["1"])
        assert json.loads(told.body)["code"] == "IDEMPOTENCY_UPSTREAM_FAILED"
        assert await proxy.record() is None
        proxy.upstream.refuses = False
        assert (await proxy.call()).status == 200


async def test_no_free_place_frees_the_key(autojump_clock: MockClock) -> None:
    async with (
        proxying(autojump_clock, behaviour=silent, limits=ProxyLimits(concurrent_max=1)) as proxy,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(proxy.call)
        await trio.sleep(1)
        told = await proxy.call(key="other")
        assert told.status == 502
        assert await proxy.record("other") is None
        assert len(proxy.upstream.requests) == 1


async def test_what_passes_unprotected_and_breaks(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, behaviour=cut_before) as proxy:
        told = await proxy.call("PUT")
        assert (told.status, json.loads(told.body)["code"]) == (502, "IDEMPOTENCY_UPSTREAM_FAILED")
        proxy.upstream.behaviour = silent
        assert (await proxy.call("GET")).status == 504
        proxy.upstream.refuses = True
        assert (await proxy.call("GET")).status == 502


async def test_a_used_connection_that_turns_out_closed(autojump_clock: MockClock) -> None:
    async def once(received: Received) -> None:
        if len(proxy.upstream.requests) in (2, 4):
            await received.stream.aclose()
        else:
            await received.answer(200, b"fine")

    async with proxying(autojump_clock, behaviour=once) as proxy:
        assert (await proxy.call("GET")).body == b"fine"
        # It is sent once more only where it changes nothing.
        assert (await proxy.call("GET")).body == b"fine"
        assert len(proxy.upstream.requests) == 3
        assert result_of(await proxy.call("POST")) == "in_doubt"
        assert len(proxy.upstream.requests) == 4


async def test_connections_are_used_again(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        client = proxy.client()
        for number in range(5):
            assert (await client.call(key=f"k{number}")).status == 200
        assert proxy.upstream.connections == 1
        await trio.sleep(10)
        await client.call(key="later")
        assert proxy.upstream.connections == 2


# ----------------------------------------------------------------------------------------------------------- the shapes


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_048_576])
async def test_answers_of_all_sizes(autojump_clock: MockClock, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    async def answer(received: Received) -> None:
        await received.answer(200, body)

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        told = await proxy.call()
        assert told.body == body
        again = await proxy.call()
        record = await proxy.record()
        assert record is not None
        assert record.state is State.COMMITTED
        if size <= 65_536:
            assert again.body == body
        else:
            assert json.loads(again.body)["outcome"] == {"status": 200, "headers": [], "omitted": True}
        assert again.header("Idempotent-Replayed") == ["true"]
        assert len(proxy.upstream.requests) == 1


async def test_an_answer_comes_as_it_comes_and_is_committed_before_its_end(autojump_clock: MockClock) -> None:
    async def stream(received: Received) -> None:
        await received.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            await trio.sleep(10)
            await received.send(b"4\r\ntick\r\n")
        await trio.sleep(10)
        await received.send(b"0\r\n\r\n")

    route = replace(ROUTE, timeout_ms=60_000)
    async with proxying(autojump_clock, route, behaviour=stream) as proxy:
        client, began = proxy.client(), trio.current_time()
        await client.send()
        seen = b""
        times = []
        while b"0\r\n\r\n" not in seen:
            seen += await client.stream.receive_some()
            times.append(round(trio.current_time() - began))
            if times[-1] < 40:
                record = await proxy.record()
                assert record is not None
                assert record.state is State.PENDING
        assert times == [0, 10, 20, 30, 40]
        record = await proxy.record()
        assert record is not None
        assert (record.state, record.outcome and record.outcome.body) == (State.COMMITTED, b"ticktickticktick"[:12])
        assert (await proxy.call()).body == b"tickticktick"


async def test_a_stream_that_breaks_is_cut_for_the_client_too(autojump_clock: MockClock) -> None:
    async def stream(received: Received) -> None:
        await received.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntick\r\n")
        await trio.sleep(1)
        await received.stream.aclose()

    async with proxying(autojump_clock, behaviour=stream) as proxy:
        client = proxy.client()
        await client.send()
        got = await client.rest()
        assert got.endswith(b"4\r\ntick\r\n")
        assert result_of(await proxy.call()) == "in_doubt"


async def test_an_old_client_gets_no_chunks(autojump_clock: MockClock) -> None:
    async def stream(received: Received) -> None:
        await received.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        await received.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntick\r\n0\r\n\r\n")

    async with proxying(autojump_clock, behaviour=stream) as proxy:
        got = await proxy.client().raw(b"POST /orders HTTP/1.0\r\nIdempotency-Key: k\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        assert got.endswith(b"\r\n\r\ntick")


async def test_an_answer_that_ends_with_its_connection(autojump_clock: MockClock) -> None:
    async def stream(received: Received) -> None:
        await received.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        await received.stream.aclose()

    async with proxying(autojump_clock, behaviour=stream) as proxy:
        told = await proxy.call()
        assert (told.body, told.header("Transfer-Encoding")) == (b"all of it", ["chunked"])
        assert (await proxy.call()).body == b"all of it"


async def test_early_hints_are_passed_on_and_100_is_not(autojump_clock: MockClock) -> None:
    async def answer(received: Received) -> None:
        await received.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        await received.answer(200, b"x")

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        told = await proxy.call()
        assert (told.informational, told.body) == ([103], b"x")


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body(autojump_clock: MockClock, status: int) -> None:
    async def answer(received: Received) -> None:
        length = b"Content-Length: 7\r\n" if status == 304 else b"Content-Length: 0\r\n"
        await received.send(b"HTTP/1.1 %d X\r\nETag: x\r\n%b\r\n" % (status, length))

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        client = proxy.client()
        told = await client.call()
        assert (told.status, told.body) == (status, b"")
        assert told.header("Content-Length") == (["7"] if status == 304 else [])
        assert told.header("Transfer-Encoding") == []
        if status == 204:
            again = await client.call()
            assert (again.status, again.header("Content-Length"), again.header("ETag")) == (204, [], ["x"])


async def test_head_has_the_length_and_not_the_body(autojump_clock: MockClock) -> None:
    async def answer(received: Received) -> None:
        await received.send(b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n")

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        client = proxy.client()
        for _ in range(2):
            told = await client.call("HEAD")
            assert (told.header("Content-Length"), told.body) == (["12345"], b"")
        assert proxy.upstream.connections == 1


async def test_a_replay_to_head_says_no_length_that_is_not_the_answers(autojump_clock: MockClock) -> None:
    async def answer(received: Received) -> None:
        await received.send(b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 22\r\n\r\n")

    async with proxying(autojump_clock, replace(ROUTE, methods=frozenset({"HEAD"})), behaviour=answer) as proxy:
        client = proxy.client()
        assert (await client.call("HEAD")).header("Content-Length") == ["22"]
        for _ in range(2):
            told = await client.call("HEAD")
            assert (told.header("Idempotent-Replayed"), told.header("ETag")) == (["true"], ["x"])
            assert told.header("Content-Length") == []
        refused = await client.call("HEAD", key=None)
        assert (refused.status, int(refused.header("Content-Length")[0]) > 0) == (400, True)
        assert len(proxy.upstream.requests) == 1


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_upstream_does_not_speak_for_us(autojump_clock: MockClock, method: str) -> None:
    names = ("Idempotent-Replayed", "idempotency_unprotected", "Idempotency-Unprotected", "X-Idemactor-Owner")
    marks = [(name, "true") for name in names]

    async def answer(received: Received) -> None:
        early = "".join(f"{name}: true\r\n" for name in names)
        await received.send(f"HTTP/1.1 103 Early Hints\r\n{early}\r\n".encode())
        await received.answer(200, b"x", [*marks, ("X-Own", "1")])

    route = replace(ROUTE, replay_headers=frozenset({"x-idemactor-owner", "x-own"}))
    async with proxying(autojump_clock, route, behaviour=answer) as proxy:
        got = await proxy.client().raw(
            f"{method} /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nConnection: close\r\n\r\n".encode()
        )
        assert got.startswith(b"HTTP/1.1 103 ")
        assert [name for name in names if name.encode() in got] == []
        told = await proxy.call(method)
        assert told.header("X-Own") == ["1"]
        assert told.header("X-Idemactor-Owner") == []
        assert told.header("Idempotent-Replayed") == (["true"] if method == "POST" else [])


async def test_a_chunked_request_goes_on_with_a_length(autojump_clock: MockClock) -> None:
    head = b"POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n"
    head += b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    async with proxying(autojump_clock) as proxy:
        await proxy.client().raw(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n")
        [got] = proxy.upstream.requests
        assert (got.body, got.header("Content-Length"), got.header("Transfer-Encoding")) == (b"abcde", ["5"], [])


async def test_100_continue_is_sent_once_the_route_is_known(autojump_clock: MockClock) -> None:
    head = "POST {} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    async with proxying(autojump_clock) as proxy:
        client = proxy.client()
        await client.stream.send_all(head.format("/orders").encode())
        assert await client.stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.stream.send_all(b"abc")
        assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 200 OK")
        assert proxy.upstream.requests[0].body == b"abc"
        refused = await proxy.client().raw(head.format("/nowhere").encode())
        assert refused.startswith(b"HTTP/1.1 404 ")
        assert b"Connection: close\r\n" in refused


async def test_pipelined_requests_are_answered_in_order(autojump_clock: MockClock) -> None:
    async def echo(received: Received) -> None:
        await received.answer(200, received.target.encode())

    async with proxying(autojump_clock, behaviour=echo) as proxy:
        one = b"GET /orders/%d HTTP/1.1\r\nHost: a\r\n\r\n"
        last = b"GET /orders/3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        got = await proxy.client().raw(one % 1 + one % 2 + last)
        assert [got.find(b"/orders/%d" % number) > 0 for number in (1, 2, 3)] == [True] * 3
        assert got.index(b"/orders/1") < got.index(b"/orders/2") < got.index(b"/orders/3")


@pytest.mark.parametrize("pieces", [(b"\r\n",), (b"\r", b"\n"), (b"\r\nG",)])
async def test_one_empty_line_before_a_request_is_skipped(autojump_clock: MockClock, pieces: tuple[bytes, ...]) -> None:
    request = b"GET /orders HTTP/1.1\r\nHost: a\r\n\r\n"
    async with proxying(autojump_clock) as proxy:
        client = proxy.client()
        for _ in range(2):
            for piece in pieces:
                await client.stream.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
            await client.stream.send_all(request.removeprefix(b"".join(pieces).strip()))
            assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        assert (await client.raw(b"\r\n\r\n" + request)).startswith(b"HTTP/1.1 400 ")
        assert len(proxy.upstream.requests) == 2


async def test_an_empty_line_begins_no_request(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        assert await proxy.client().raw(b"\r\n") == b""
        client = proxy.client()
        await client.stream.send_all(b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        proxy.door.drain()
        began = trio.current_time()
        assert await client.rest() == b""
        assert trio.current_time() == began


async def test_a_large_request(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, limits=ProxyLimits(body_bytes_max=4_000_000)) as proxy:
        body = b"x" * 3_000_000
        assert (await proxy.call(body=body)).status == 200
        assert proxy.upstream.requests[0].body == body


# ----------------------------------------------------------------------------------------------- clients that misbehave


@pytest.mark.parametrize(
    "data",
    [
        b"POST /orders HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET",
        b"POST /orders HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nGET /orders HTTP/1.1",
        b"POST /orders HTTP/1.1\nHost: a\n\n",
        b"POST /orders HTTP/1.1\r\nHost: a\n\r\n\r\n",
        b"POST /orders HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
        b"POST /orders HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\nabcde\n0\n\n\r\n",
        b"POST /orders HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcGET",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n",
    ],
)
async def test_smuggling_is_refused_and_the_connection_ends(autojump_clock: MockClock, data: bytes) -> None:
    async with proxying(autojump_clock) as proxy:
        got = await proxy.client().raw(data + b" /orders HTTP/1.1\r\nHost: a\r\n\r\n")
        assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 "))
        assert b"Connection: close\r\n" in got
        assert got.count(b"\r\nContent-Length: ") == 1
        assert not proxy.upstream.requests


async def test_limits_of_a_request(autojump_clock: MockClock) -> None:
    limits = ProxyLimits(header_bytes_max=1_024, body_bytes_max=10)
    async with proxying(autojump_clock, limits=limits) as proxy:
        large = b"GET /orders HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2_000
        assert (await proxy.client().raw(large)).startswith(b"HTTP/1.1 431 ")
        assert (await proxy.client().raw(large + b"\r\n\r\n")).startswith(b"HTTP/1.1 431 ")
        told = await proxy.call(body=b"x" * 11)
        assert (told.status, json.loads(told.body)["code"]) == (413, "IDEMPOTENCY_TOO_LARGE")
        assert (await proxy.call(body=b"x" * 10)).status == 200


def test_who_is_not_let_in_is_told() -> None:
    got = rendered(answers.of_status(503, Code.OVERLOADED, "Full."))
    head, _, body = got.partition(b"\r\n\r\n")
    fields = head.split(b"\r\n")
    assert fields[0] == b"HTTP/1.1 503 Service Unavailable"
    assert {f"Content-Length: {len(body)}".encode(), b"Connection: close"} <= set(fields)
    assert json.loads(body)["code"] == "IDEMPOTENCY_OVERLOADED"


async def test_slow_clients_are_let_go(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        assert await proxy.client().rest() == b""
        began = trio.current_time()
        assert (await proxy.client().raw(b"GET /orders")).startswith(b"HTTP/1.1 408 ")
        head = b"POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 5\r\n\r\nab"
        assert (await proxy.client().raw(head)).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() - began < 60
        assert not proxy.upstream.requests


async def test_a_client_that_leaves_changes_nothing(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(5)
        await received.answer(200, b"done")

    async with proxying(autojump_clock, behaviour=slow) as proxy:
        client = proxy.client()
        await client.send()
        await trio.sleep(1)
        await client.stream.aclose()
        await trio.sleep(10)
        told = await proxy.call()
        assert (told.body, told.header("Idempotent-Replayed")) == (b"done", ["true"])
        assert len(proxy.upstream.requests) == 1


async def test_a_client_that_does_not_read_changes_nothing(autojump_clock: MockClock) -> None:
    async def stream(received: Received) -> None:
        await received.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            await received.send(b"4\r\ntick\r\n")
            await trio.sleep(1)
        await received.send(b"0\r\n\r\n")

    async def stall() -> None:
        await trio.sleep_forever()

    async with proxying(autojump_clock, behaviour=stream) as proxy:
        near, far = trio.testing.memory_stream_pair()
        far.send_stream.send_all_hook = stall
        async with trio.open_nursery() as nursery:
            nursery.start_soon(proxy.door.handle, far)
            await Client(near).send()
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert (await proxy.call()).body == b"tickticktick"


async def test_a_waiting_client_that_leaves_is_never_granted(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(10)
        await received.answer(404)

    async with proxying(autojump_clock, replace(ROUTE, wait_ms=60_000), behaviour=slow) as proxy:
        first, second = proxy.client(), proxy.client()
        await first.send()
        await trio.sleep(1)
        await second.send()
        await trio.sleep(1)
        await second.stream.aclose()
        assert (await first.read()).status == 404
        await trio.sleep(30)
        assert len(proxy.upstream.requests) == 1
        assert await proxy.record() is None


async def test_a_client_that_sends_no_more_is_answered(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(10)
        await received.answer(200, b"done")

    async with proxying(autojump_clock, replace(ROUTE, wait_ms=60_000), behaviour=slow) as proxy:
        first, second = proxy.client(), proxy.client()
        for client in (first, second):
            await client.send()
            await client.stream.send_stream.aclose()
            await trio.sleep(2)
        told = await second.read()
        assert (told.status, result_of(told)) == (409, "in_flight")
        assert trio.current_time() < 5
        assert (await first.read()).body == b"done"
        third = proxy.client()
        await third.send()
        await third.stream.send_stream.aclose()
        assert (await third.read()).header("Idempotent-Replayed") == ["true"]
        assert len(proxy.upstream.requests) == 1


async def test_who_hung_up_is_not_granted_what_it_waited_for(autojump_clock: MockClock) -> None:
    async def refuse(received: Received) -> None:
        await trio.sleep(5)
        await received.answer(404)

    async with proxying(autojump_clock, replace(ROUTE, wait_ms=60_000), behaviour=refuse) as proxy:
        first, second = proxy.client(), proxy.client()
        await first.send()
        await second.send()
        await trio.sleep(4.5)
        await second.stream.send_stream.aclose()
        # The key is free again before the second one's second is over.
        assert (await first.read()).status == 404
        told = await second.read()
        assert (told.status, result_of(told), told.header("Retry-After")) == (409, "in_flight", ["1"])
        await trio.sleep(1)
        assert len(proxy.upstream.requests) == 1
        assert await proxy.record() is None


async def test_a_shard_that_is_slow_grants_nothing_to_who_hung_up(autojump_clock: MockClock) -> None:
    async def slow(_batch: Batch) -> None:
        await trio.sleep(3)

    async with proxying(autojump_clock, replace(ROUTE, wait_ms=60_000)) as proxy:
        for disk in proxy.rig.disks:
            disk.before_commit = slow
        client = proxy.client()
        await client.send()
        await client.stream.send_stream.aclose()
        assert (await client.read()).status in (409, 503)
        for disk in proxy.rig.disks:
            disk.before_commit = None
        await trio.sleep(30)
        assert not proxy.upstream.requests
        assert await proxy.record() is None


# ----------------------------------------------------------------------------------------------- shards, leases, drains


async def test_the_lease_is_renewed_while_the_upstream_works(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(10 * LEASE_MS / 1_000)
        await received.answer(200, b"done")

    route = replace(ROUTE, timeout_ms=3_600_000, first_byte_ms=3_600_000)
    async with proxying(autojump_clock, route, behaviour=slow) as proxy, trio.open_nursery() as nursery:
        nursery.start_soon(proxy.call)
        for _ in range(9):
            await trio.sleep(LEASE_MS / 1_000)
            assert result_of(await proxy.call()) == "in_flight"
        await trio.sleep(2 * LEASE_MS / 1_000)
        assert (await proxy.call()).body == b"done"


async def test_nothing_is_sent_once_the_lease_has_ended(autojump_clock: MockClock) -> None:
    # No configuration allows it; what is tested is that the proxy looks before it sends.
    route = replace(ROUTE, namespace="brief", connect_ms=60_000)
    async with proxying(autojump_clock, route) as proxy, trio.open_nursery() as nursery:
        told: list[Told] = []

        async def late() -> None:
            told.append(await proxy.call())

        proxy.upstream.connect_s = 50
        nursery.start_soon(late)
        await trio.sleep(41)
        proxy.upstream.connect_s = 0
        assert (await proxy.call()).status == 200
        [got] = proxy.upstream.requests
        assert got.header("Idempotency-Takeover") == ["true"]
        await trio.sleep(20)
        assert (told[0].status, told[0].header("Retry-After")) == (502, ["1"])
        assert len(proxy.upstream.requests) == 1
        assert (await proxy.call()).header("Idempotent-Replayed") == ["true"]


async def test_a_renewed_lease_outlasts_a_slow_connection(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, replace(ROUTE, namespace="brief", connect_ms=60_000)) as proxy:
        proxy.upstream.connect_s = 25
        assert (await proxy.call()).status == 200
        assert len(proxy.upstream.requests) == 1


async def test_what_a_renewal_is_told_counts(autojump_clock: MockClock) -> None:
    """Somebody else settled the key while the connection was made."""
    route = replace(ROUTE, connect_ms=60_000)
    async with proxying(autojump_clock, route) as proxy, trio.open_nursery() as nursery:
        proxy.upstream.connect_s = 25
        told: list[Told] = []

        async def late() -> None:
            told.append(await proxy.call())

        nursery.start_soon(late)
        await trio.sleep(5)
        record = await proxy.record()
        assert record is not None
        await proxy.ask(Commit(Identity("default", "default", "k"), record.token, Outcome(201, (), b"elsewhere")))
        await trio.sleep(25)
        assert told[0].status == 502
        assert not proxy.upstream.requests
        assert (await proxy.call()).body == b"elsewhere"


async def test_what_was_not_sent_for_want_of_a_lease_is_free_again(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, replace(ROUTE, namespace="brief", connect_ms=60_000)) as proxy:
        proxy.upstream.connect_s = 50
        assert (await proxy.call()).status == 502
        assert await proxy.record(namespace="brief") is None
        proxy.upstream.connect_s = 0
        assert (await proxy.call()).status == 200
        [got] = proxy.upstream.requests
        assert got.header("Idempotency-Takeover") == []


async def test_a_client_that_reads_slowly_does_not_outlast_the_lease(autojump_clock: MockClock) -> None:
    async def stream(received: Received) -> None:
        await received.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(10):
            await received.send(b"4\r\ntick\r\n")
            await trio.sleep(1)
        await received.send(b"0\r\n\r\n")

    writes: list[float] = []

    async def slow() -> None:
        writes.append(trio.current_time())
        await trio.sleep(100)

    route = replace(ROUTE, namespace="brief", timeout_ms=20_000, first_byte_ms=20_000)
    limits = ProxyLimits(write_ms=200_000)
    async with (
        proxying(autojump_clock, route, behaviour=stream, limits=limits) as proxy,
        trio.open_nursery() as nursery,
    ):
        near, far = trio.testing.memory_stream_pair()
        far.send_stream.send_all_hook = slow
        nursery.start_soon(proxy.door.handle, far)
        await Client(near).send()
        await trio.sleep(39)
        record = await proxy.record(namespace="brief")
        assert record is not None
        assert (record.state, record.attempt, len(writes)) == (State.COMMITTED, 1, 1)
        far.send_stream.send_all_hook = None
        assert (await proxy.call()).body == b"tick" * 10
        assert len(proxy.upstream.requests) == 1


async def test_a_request_that_cannot_be_made_was_not_sent(autojump_clock: MockClock) -> None:
    """Whatever breaks before the first byte: the key is free, and the client is answered."""
    async with proxying(autojump_clock, replace(ROUTE, operation_header="Content-Length")) as proxy:
        told = await proxy.call(body=BODY)
        assert (told.status, told.header("Retry-After")) == (502, ["1"])
        assert not proxy.upstream.requests
        assert await proxy.record() is None
    bad = replace(ROUTE, operation_form=OrderIdForm.BYBIT, operation_prefix="x" * 100)
    async with proxying(autojump_clock, bad) as proxy:
        assert (await proxy.call()).status == 502
        assert await proxy.record() is None


async def test_a_connector_that_breaks_has_sent_nothing(autojump_clock: MockClock) -> None:
    async def broken(_origin: object) -> trio.abc.Stream:
        raise ValueError

    async with proxying(autojump_clock) as proxy:
        for upstream in proxy.door._upstreams.values():
            upstream._connect = broken
        assert (await proxy.call()).status == 502
        assert await proxy.record() is None
        assert (await proxy.call("GET")).status == 502


async def test_an_exchange_that_breaks_is_in_doubt(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_args: object) -> None:
        raise ValueError

    monkeypatch.setattr("idemactor.gateway.proxy.upstream.Call.head", broken)
    async with proxying(autojump_clock) as proxy:
        assert result_of(await proxy.call()) == "in_doubt"
        assert result_of(await proxy.call()) == "in_doubt"
        assert (await proxy.call("GET")).status == 502


async def test_a_takeover_is_marked_and_its_failure_keeps_the_evidence(autojump_clock: MockClock) -> None:
    async def refuse(received: Received) -> None:
        await received.answer(404)

    route = replace(ROUTE, namespace="retry")
    async with proxying(autojump_clock, route, behaviour=refuse) as proxy:
        abandoned = await proxy.ask(Reserve(Identity("default", "retry", "k")))
        assert isinstance(abandoned, Reserved)
        await trio.sleep(LEASE_MS / 1_000 + 1)
        for attempt in ("2", "3"):
            assert (await proxy.call()).status == 404
            got = proxy.upstream.requests[-1]
            assert got.header("Idempotency-Takeover") == ["true"]
            assert got.header("Idempotency-Attempt") == [attempt]
            assert got.header("Idempotency-Operation-Id") == [abandoned.operation_id]
            await trio.sleep(1)


async def test_shards_that_do_not_answer_close_the_door(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, run=False) as proxy:
        began = trio.current_time()
        told = await proxy.call()
        assert (told.status, told.header("Retry-After")) == (503, ["1"])
        assert json.loads(told.body)["code"] == "IDEMPOTENCY_UNAVAILABLE"
        assert 2 <= trio.current_time() - began < 3
        assert not proxy.upstream.requests


async def test_shards_that_do_not_answer_leave_it_open_where_the_namespace_wants_it(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, replace(ROUTE, namespace="open"), run=False) as proxy:
        told = await proxy.call()
        assert (told.status, told.header("Idempotency-Unprotected")) == (200, ["true"])
        [got] = proxy.upstream.requests
        assert got.header("Idempotency-Unprotected") == ["true"]
        assert got.header("Idempotency-Operation-Id")
        assert 'idemactor_gateway_unprotected_total{namespace="open"} 1.0' in proxy.metrics()
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.rig.context.router.run)
            await trio.sleep(10)
            # The shard answers again, and was told.
            again = await proxy.call()
            assert (again.body, again.header("Idempotent-Replayed")) == (told.body, ["true"])
            assert len(proxy.upstream.requests) == 1
            nursery.cancel_scope.cancel()


async def test_what_is_refused_by_quota_stays_refused_where_it_is_open(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, replace(ROUTE, namespace="open")) as proxy:
        await proxy.call(body=b"1")
        told = await proxy.call(body=b"2")
        assert told.status == 422
        assert len(proxy.upstream.requests) == 1


async def test_a_drain_finishes_what_is_under_way(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(5)
        await received.answer(200, b"done")

    async with proxying(autojump_clock, behaviour=slow) as proxy:
        idle, busy = proxy.client(), proxy.client()
        await idle.call("GET")
        await busy.send()
        await trio.sleep(1)
        proxy.door.drain()
        proxy.rig.context.router.settle_only()
        assert await idle.rest() == b""
        told = await busy.read()
        assert told.body == b"done"
        assert await busy.rest() == b""
        with trio.fail_after(5):
            await proxy.door.finished.wait()
        record = await proxy.record()
        assert record is not None
        assert record.state is State.COMMITTED


async def test_a_drain_sends_nothing_on_unprotected(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock, replace(ROUTE, namespace="open"), run=False) as proxy:
        client = proxy.client()
        await client.send()
        await trio.testing.wait_all_tasks_blocked()
        proxy.door.drain()
        proxy.rig.context.router.settle_only()
        assert (await client.read()).status == 503
        assert not proxy.upstream.requests


@pytest.mark.parametrize(
    "begun",
    [
        b"POST /ord",
        b"\r\nPOST /orders HTTP/1.1\r\n",
        b"POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\nx",
        b"PUT /orders HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
    ],
)
async def test_a_drain_does_not_wait_for_a_request_that_is_not_there_yet(
    autojump_clock: MockClock, begun: bytes
) -> None:
    async with proxying(autojump_clock) as proxy:
        client = proxy.client()
        await client.stream.send_all(begun)
        await trio.testing.wait_all_tasks_blocked()
        proxy.door.drain()
        began = trio.current_time()
        got = await client.rest()
        assert got.startswith(b"HTTP/1.1 503 ")
        assert b"Connection: close\r\n" in got
        assert b"\r\nRetry-After: 1\r\n" in got
        assert trio.current_time() == began
        # The client never sends the rest, and does not close either.
        with trio.fail_after(5):
            await proxy.door.finished.wait()
        assert not proxy.upstream.requests


async def test_the_client_is_answered_though_the_end_cannot_be_recorded_yet(autojump_clock: MockClock) -> None:
    async def stuck(_batch: Batch) -> None:
        await trio.sleep(20)

    async def then_the_disk_hangs(received: Received) -> None:
        for disk in proxy.rig.disks:
            disk.before_commit = stuck
        await received.answer(200, b"done")

    async with proxying(autojump_clock, behaviour=then_the_disk_hangs) as proxy:
        began = trio.current_time()
        assert (await proxy.call()).body == b"done"
        assert 2 <= trio.current_time() - began < 3
        await trio.sleep(60)
        for disk in proxy.rig.disks:
            disk.before_commit = None
        again = await proxy.call()
        assert (again.body, again.header("Idempotent-Replayed")) == (b"done", ["true"])
        assert len(proxy.upstream.requests) == 1


async def test_a_grant_that_came_too_late_is_given_back(autojump_clock: MockClock) -> None:
    async def slow(_batch: Batch) -> None:
        await trio.sleep(10)

    async with proxying(autojump_clock) as proxy:
        for disk in proxy.rig.disks:
            disk.before_commit = slow
        assert (await proxy.call()).status == 503
        for disk in proxy.rig.disks:
            disk.before_commit = None
        await trio.sleep(30)
        assert await proxy.record() is None
        assert (await proxy.call()).status == 200
        assert len(proxy.upstream.requests) == 1


async def test_a_trusted_peer_is_believed(autojump_clock: MockClock) -> None:
    for trusted, seen in ((["unix"], "1.2.3.4, unknown"), ([], "unknown")):
        async with proxying(autojump_clock, trusted=trusted) as proxy:
            await proxy.call(headers=[("X-Forwarded-For", "1.2.3.4")])
            assert proxy.upstream.requests[0].header("X-Forwarded-For") == [seen]


async def test_what_is_counted(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        for _ in range(2):
            await proxy.call()
        shown = proxy.metrics()
        assert 'gateway_answers_total{namespace="default",result="reserved"} 1.0' in shown
        assert 'gateway_answers_total{namespace="default",result="completed"} 1.0' in shown
        assert 'gateway_verdicts_total{namespace="default",verdict="success"} 1.0' in shown
        assert 'idemactor_connections_total{door="gateway"} 2.0' in shown
