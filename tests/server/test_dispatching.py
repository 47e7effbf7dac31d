"""Dispatched operations and the outbox at both doors, over real shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from idemactor.core.policy import DispatchPolicy, OnFailure, Policy
from tests.server.rig import START_MS, TOKENS
from tests.server.test_http_app import Client as HttpClient
from tests.server.test_http_app import Exchange
from tests.server.test_http_app import serving as serving_http
from tests.server.test_rpc_door import serving as serving_rpc

V1 = "/v1/default"
NO_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
PUSHED: Mapping[str, Policy] = {
    "default": Policy(),
    "pushed": Policy(dispatch=DispatchPolicy(pushed=True, recognised=False)),
}


def intent(body: str = "do it", **more: Any) -> dict[str, Any]:
    return {"content_type": "text/plain", "body": body, "headers": [["X-A", "b"]], **more}


async def dispatched(client: HttpClient, key: str, body: str = "do it", **members: Any) -> str:
    answer = await client.post(f"{V1}/dispatch", {"key": key, "intent": intent(body), **members})
    assert answer.status == 202, answer.body
    found: str = answer.json["operation_id"]
    return found


async def polled(client: HttpClient, **members: Any) -> list[dict[str, Any]]:
    answer = await client.post(f"{V1}/outbox/poll", {"max": 1_000, **members})
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json["entries"]
    return found


def settling(entry: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {name: entry[name] for name in ("id", "key", "token")} | more


# --------------------------------------------------------------------------------------------------------------- http


async def test_an_intent_is_taken_on_and_told_again(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        body = {"key": "k", "intent": intent(), "order_key": "acct"}
        first = await client.post(f"{V1}/dispatch", body)
        operation_id = first.json["operation_id"]
        accepted = {"result": "accepted", "proceed": False, "operation_id": operation_id, "state": "queued"}
        assert (first.status, first.json) == (202, accepted | {"repeated": False})
        assert first.headers["location"] == f"{V1}/operations/{operation_id}"
        again = await client.post(f"{V1}/dispatch", body)
        assert (again.status, again.json) == (202, accepted | {"repeated": True})
        assert again.headers["location"] == f"{V1}/operations/{operation_id}"
        other = await client.post(f"{V1}/dispatch", {"key": "k", "intent": intent("another")})
        assert other.problem(422, "MISMATCH")["proceed"] is False
        seen = (await client.post(f"{V1}/get", {"key": "k"})).json["record"]
        assert (seen["state"], seen["attempt"], seen["lease_expires_at"]) == ("pending", 0, None)
        assert seen["dispatch"] == {
            "state": "queued",
            "due_at": START_MS,
            "deliver_until": START_MS + 86_400_000,
            "order_key": "acct",
        }
        listed = (await client.get(f"{V1}/records?state=pending")).json["records"]
        assert [record["dispatch"]["state"] for record in listed] == ["queued"]


async def test_a_reserve_of_what_is_dispatched_is_in_flight(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        await dispatched(client, "k")
        told = (await client.post(f"{V1}/reserve", {"key": "k"})).problem(409, "IN_FLIGHT")
        assert (told["lease_expires_at"], told["attempt"], told["proceed"]) == (None, 0, False)


async def test_what_may_be_said_of_an_intent_is_checked(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({}, "intent"),
            ({"intent": intent(headers=[["Host", "elsewhere"]])}, "intent.headers.0"),
            ({"intent": intent(more=1)}, "intent"),
            ({"intent": intent(), "order_key": ""}, "order_key"),
            ({"intent": intent(), "window_ms": 5}, "window_ms"),
            ({"intent": intent(), "expires_in_ms": 0}, "expires_in_ms"),
        ]
        for members, field in wrong:
            told = (await client.post(f"{V1}/dispatch", {"key": "k", **members})).problem(400, "INVALID_REQUEST")
            assert (told["field"], told["proceed"]) == (field, False)
        large = await client.post(f"{V1}/dispatch", {"key": "k", "intent": intent("x" * 262_144)})
        assert large.problem(413, "TOO_LARGE")["field"] == "intent"


async def test_an_operation_from_queued_to_succeeded(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        operation_id = await dispatched(client, "k", order_key="acct")
        place = f"{V1}/operations/{operation_id}"
        found = (await client.get(place)).json
        assert (found["result"], found["state"], found["operation_id"]) == ("found", "queued", operation_id)
        assert found["operation"] == {
            "operation_id": operation_id,
            "key": "k",
            "state": "queued",
            "attempt": 0,
            "accepted_at": START_MS,
            "next_attempt_at": START_MS,
            "lease_expires_at": None,
            "deliver_until": START_MS + 86_400_000,
            "ended_at": None,
            "expires_at": None,
            "order_key": "acct",
            "reason": None,
            "outcome": None,
        }
        [entry] = await polled(client, visibility_ms=5_000)
        assert entry == {
            "id": operation_id,
            "kind": "intent",
            "key": "k",
            "operation_id": operation_id,
            "token": entry["token"],
            "attempt": 1,
            "order_key": "acct",
            "at": START_MS,
            "visible_until": START_MS + 5_000,
            "takeover": False,
            "content_type": "text/plain",
            "headers": [["X-A", "b"]],
            "body": "do it",
        }
        assert (await client.get(place)).json["state"] == "delivering"
        assert (await client.call("DELETE", place)).problem(409, "UNCANCELLABLE")["state"] == "delivering"
        outcome = {"status": 201, "headers": [], "body": "done"}
        acked = await client.post(f"{V1}/outbox/ack", settling(entry, outcome=outcome))
        assert (acked.status, acked.json["result"], acked.json["repeated"]) == (200, "committed", False)
        ended = (await client.get(place)).json
        assert (ended["state"], ended["outcome"], ended["operation"]["outcome"]) == ("succeeded", outcome, outcome)
        late = await client.post(f"{V1}/outbox/nack", settling(entry))
        assert late.problem(409, "ALREADY_COMMITTED")
        replayed = (await client.post(f"{V1}/dispatch", {"key": "k", "intent": intent()})).json
        assert (replayed["state"], replayed["repeated"]) == ("succeeded", True)
        assert (await client.post(f"{V1}/reserve", {"key": "k"})).json["outcome"] == outcome


async def test_waiting_for_the_end(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        operation_id = await dispatched(client, "k")
        place = f"{V1}/operations/{operation_id}"
        start = trio.current_time()
        assert (await client.get(f"{place}?wait_ms=1500")).json["state"] == "queued"
        assert trio.current_time() - start == pytest.approx(1.5, abs=0.1)
        [entry] = await polled(client)
        async with trio.open_nursery() as nursery:

            async def end_it() -> None:
                await trio.sleep(2)
                await client.post(f"{V1}/outbox/nack", settling(entry, failed=True, outcome={"status": 422}))

            nursery.start_soon(end_it)
            start = trio.current_time()
            ended = (await client.get(f"{place}?wait_ms=60000")).json
        assert (ended["state"], ended["outcome"]["status"]) == ("failed", 422)
        assert trio.current_time() - start == pytest.approx(2, abs=0.1)


async def test_a_client_that_leaves_waits_no_longer(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        operation_id = await dispatched(client, "k")
        for path, method in ((f"{V1}/operations/{operation_id}?wait_ms=60000", "GET"), (f"{V1}/outbox/poll", "POST")):
            exchange = Exchange(client.app, method, path, [("content-type", "application/json")])
            start = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(exchange.run)
                exchange.send(b'{"wait_ms": 60000}' if method == "POST" else b"")
                await trio.sleep(0.5)
                if method == "GET":
                    assert not exchange.answered
                exchange.hang_up()
            assert trio.current_time() - start < 2


async def test_cancelling(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        operation_id = await dispatched(client, "k")
        place = f"{V1}/operations/{operation_id}"
        assert (await client.call("DELETE", place)).json == {"result": "cancelled", "repeated": False}
        assert (await client.call("DELETE", place)).json == {"result": "cancelled", "repeated": True}
        assert (await client.get(place)).json["state"] == "cancelled"
        assert await polled(client) == []
        assert await dispatched(client, "k", "another") != operation_id


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_operations_that_are_not_there(method: str, autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock, tokens=TOKENS) as client:
        acme, other = [("authorization", "Bearer caller-token")], [("authorization", "Bearer other-token")]
        answer = await client.post(f"{V1}/dispatch", {"key": "k", "intent": intent()}, headers=acme)
        operation_id = answer.json["operation_id"]
        for name, headers in ((NO_ID, acme), ("nonsense", acme), (operation_id, other)):
            told = await client.call(method, f"{V1}/operations/{name}", headers=headers)
            assert told.problem(404, "NOT_FOUND")["field"] == "operation_id"
        elsewhere = await client.call(method, f"/v1/trade/operations/{operation_id}", headers=acme)
        assert elsewhere.problem(404, "NOT_FOUND")
        assert (await client.call(method, f"{V1}/operations/{operation_id}")).problem(401, "UNAUTHENTICATED")


async def test_the_query_of_an_operation_is_strict(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        place = f"{V1}/operations/{await dispatched(client, 'k')}"
        for query, field in [
            ("wait_ms=60001", "wait_ms"),
            ("wait_ms=-1", "wait_ms"),
            ("wait_ms=", "wait_ms"),
            ("wait_ms=1&wait_ms=1", "wait_ms"),
            ("wait=1", "wait"),
            (f"operation_id={NO_ID}", "operation_id"),
        ]:
            assert (await client.get(f"{place}?{query}")).problem(400, "INVALID_REQUEST")["field"] == field
        assert (await client.get(place)).status == 200
        assert (await client.call("DELETE", f"{place}?wait_ms=1")).problem(400, "INVALID_REQUEST")


async def test_an_unavailable_shard_is_no_missing_operation(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock, run=False) as client:
        told = await client.get(f"{V1}/operations/{NO_ID}")
        assert told.problem(503, "UNAVAILABLE")
        assert (await client.post(f"{V1}/outbox/poll", {})).problem(503, "UNAVAILABLE")


# ------------------------------------------------------------------------------------------------------------- polling


async def test_what_is_given_back_is_shown_again(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        await dispatched(client, "k")
        [entry] = await polled(client)
        nacked = await client.post(f"{V1}/outbox/nack", settling(entry, delay_ms=5_000, reason="not now"))
        assert nacked.json["result"] == "postponed"
        due_at = nacked.json["due_at"]
        assert await polled(client) == []
        start = trio.current_time()
        [again] = await polled(client, wait_ms=60_000)
        assert trio.current_time() - start == pytest.approx(5, abs=0.2)
        assert due_at == pytest.approx(START_MS + 5_000, abs=200)
        assert (again["attempt"], again["takeover"]) == (2, False)
        assert again["token"] > entry["token"]
        assert (await client.post(f"{V1}/outbox/ack", settling(entry))).problem(409, "STALE_TOKEN")


async def test_what_nobody_acknowledges_is_shown_again(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        await dispatched(client, "k")
        await polled(client, visibility_ms=3_000)
        assert await polled(client) == []
        [again] = await polled(client, wait_ms=10_000)
        assert (again["attempt"], again["takeover"]) == (2, True)


async def test_a_poll_that_waits_is_woken(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client, trio.open_nursery() as nursery:

        async def dispatch_it() -> None:
            await trio.sleep(1.25)
            await dispatched(client, "k")

        nursery.start_soon(dispatch_it)
        start = trio.current_time()
        assert len(await polled(client, wait_ms=60_000)) == 1
        assert trio.current_time() - start == pytest.approx(1.25, abs=0.05)


async def test_one_order_key_is_delivered_strictly_in_order_over_all_shards(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock, shards=4) as client:
        for number in range(12):
            await dispatched(client, f"k{number}", order_key="one" if number % 2 else "two")
        seen: dict[str, list[str]] = {"one": [], "two": []}
        while len(seen["one"]) + len(seen["two"]) < 12:
            entries = await polled(client, wait_ms=60_000)
            assert 1 <= len(entries) <= 2
            assert len({entry["order_key"] for entry in entries}) == len(entries)
            for entry in entries:
                seen[entry["order_key"]].append(entry["key"])
                assert (await client.post(f"{V1}/outbox/ack", settling(entry))).status == 200
        assert seen == {"one": [f"k{n}" for n in range(1, 12, 2)], "two": [f"k{n}" for n in range(0, 12, 2)]}


async def test_a_poll_takes_no_more_than_it_asks_for(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock, shards=3) as client:
        for number in range(9):
            await dispatched(client, f"k{number}", order_key="o" if number == 4 else None)
        assert len(await polled(client, max=5)) == 5
        assert len(await polled(client, max=5)) == 4
        await dispatched(client, "one more")
        assert len((await client.post(f"{V1}/outbox/poll")).json["entries"]) == 1


async def test_large_entries_do_not_come_all_at_once(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock, shards=3) as client:
        for number in range(40):
            await dispatched(client, f"k{number}", "x" * 200_000)
        first = await polled(client)
        assert 1 <= len(first) < 40
        rest = 0
        while found := await polled(client):
            rest += len(found)
        assert len(first) + rest == 40


async def test_events_of_a_commit_are_fetched_and_acknowledged(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        granted = (await client.post(f"{V1}/reserve", {"key": "k"})).json
        events = [{"content_type": "t/p", "body_b64": "/w=="}, {"body": "second", "order_key": "o"}]
        commit = {"key": "k", "token": granted["token"], "events": events}
        assert (await client.post(f"{V1}/commit", commit)).status == 200
        assert (await client.post(f"{V1}/commit", commit)).json["repeated"] is True
        first, second = sorted(await polled(client), key=lambda entry: str(entry["id"]))
        assert first == {
            "id": f"{granted['operation_id']}.1",
            "kind": "event",
            "key": "k",
            "operation_id": granted["operation_id"],
            "token": first["token"],
            "attempt": 1,
            "order_key": None,
            "at": START_MS,
            "visible_until": START_MS + 30_000,
            "takeover": False,
            "content_type": "t/p",
            "headers": [],
            "body_b64": "/w==",
        }
        assert (second["id"], second["body"], second["order_key"]) == (f"{granted['operation_id']}.2", "second", "o")
        assert (await client.post(f"{V1}/outbox/ack", settling(first))).json == {
            "result": "acknowledged",
            "repeated": False,
        }
        assert (await client.post(f"{V1}/outbox/ack", settling(first))).json["repeated"] is True
        nacked = await client.post(f"{V1}/outbox/nack", settling(second, delay_ms=0))
        assert nacked.json["result"] == "postponed"
        [again] = await polled(client)
        assert (again["id"], again["attempt"], again["takeover"]) == (second["id"], 2, True)
        for member in ({"outcome": {"status": 200}}, {"ttl_ms": 5}):
            told = await client.post(f"{V1}/outbox/ack", settling(again, **member))
            assert told.problem(400, "INVALID_REQUEST")["field"] == next(iter(member))


async def test_where_intents_are_pushed_only_events_are_fetched(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock, policies=PUSHED) as client:
        await client.post("/v1/pushed/dispatch", {"key": "k", "intent": intent()})
        granted = (await client.post("/v1/pushed/reserve", {"key": "e"})).json
        await client.post("/v1/pushed/commit", {"key": "e", "token": granted["token"], "events": [{"body": "e"}]})
        entries = (await client.post("/v1/pushed/outbox/poll", {})).json["entries"]
        assert [entry["kind"] for entry in entries] == ["event"]


async def test_what_failed_frees_its_key_where_the_namespace_says_so(autojump_clock: MockClock) -> None:
    policies = {"default": Policy(dispatch=DispatchPolicy(on_failure=OnFailure.RELEASE))}
    async with serving_http(autojump_clock, policies=policies) as client:
        operation_id = await dispatched(client, "k")
        [entry] = await polled(client)
        failed = await client.post(f"{V1}/outbox/nack", settling(entry, failed=True, reason="no such symbol"))
        assert failed.json == {"result": "released", "repeated": False}
        assert (await client.get(f"{V1}/operations/{operation_id}")).json["state"] == "failed"
        assert await dispatched(client, "k", "another") != operation_id


async def test_what_a_nack_may_say(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        await dispatched(client, "k")
        [entry] = await polled(client)
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"failed": True, "delay_ms": 5}, "delay_ms"),
            ({"outcome": {"status": 200}}, "outcome"),
            ({"delay_ms": 86_400_001}, "delay_ms"),
        ]
        for members, field in wrong:
            told = await client.post(f"{V1}/outbox/nack", settling(entry, **members))
            assert told.problem(400, "INVALID_REQUEST")["field"] == field
        failed = await client.post(f"{V1}/outbox/nack", settling(entry, failed=True))
        assert failed.json["result"] == "committed"
        assert (await client.get(f"{V1}/operations/{entry['id']}")).json["state"] == "failed"


# ---------------------------------------------------------------------------------------------------------------- rpc


async def test_all_of_it_over_rpc(autojump_clock: MockClock) -> None:
    async with serving_rpc(autojump_clock) as server:
        peer = server.connect()
        space = {"namespace": "default"}
        given = {"content_type": "application/octet-stream", "body": b"\xff", "headers": {"X-A": b"b"}}
        accepted = await peer.call("dispatch", **space, key="k", intent=given)
        operation_id = accepted["operation_id"]
        assert accepted == {
            "result": "accepted",
            "proceed": False,
            "operation_id": operation_id,
            "state": "queued",
            "repeated": False,
        }
        found = await peer.call("operation", **space, operation_id=operation_id)
        assert (found["result"], found["state"]) == ("found", "queued")
        [entry] = (await peer.call("outbox.poll", **space, max=5, holder="worker 1"))["entries"]
        assert (entry["body"], entry["headers"]) == (b"\xff", [["X-A", "b"]])
        stuck = await peer.call("cancel", **space, operation_id=operation_id)
        assert (stuck["code"], stuck["state"]) == ("IDEMPOTENCY_UNCANCELLABLE", "delivering")
        outcome = {"status": 200, "headers": [], "body": b"\xfe"}
        acked = await peer.call("outbox.ack", **space, **settling(entry), outcome=outcome)
        assert acked["result"] == "committed"
        ended = await peer.call("operation", **space, operation_id=operation_id, wait_ms=60_000)
        assert (ended["state"], ended["outcome"]) == ("succeeded", outcome)

        second = (await peer.call("dispatch", **space, key="k2", intent=given))["operation_id"]
        cancelled = await peer.call("cancel", **space, operation_id=second)
        assert cancelled == {"result": "cancelled", "repeated": False}
        await peer.call("dispatch", **space, key="k3", intent=given)
        [third] = (await peer.call("outbox.poll", **space))["entries"]
        assert (await peer.call("outbox.nack", **space, **settling(third)))["result"] == "postponed"


async def test_refusals_over_rpc(autojump_clock: MockClock) -> None:
    async with serving_rpc(autojump_clock) as server:
        peer = server.connect()
        space = {"namespace": "default"}
        for method in ("operation", "cancel"):
            assert (await peer.fail(method, **space, operation_id=NO_ID)).startswith("IDEMPOTENCY_NOT_FOUND: ")
            assert (await peer.fail(method, **space)).startswith("IDEMPOTENCY_INVALID_REQUEST: operation_id")
        for method in ("outbox.ack", "outbox.nack"):
            unknown = await peer.call(method, **space, id=NO_ID, key="none", token=1)
            assert unknown["code"] == "IDEMPOTENCY_UNKNOWN_KEY"
            assert (await peer.fail(method, **space)).startswith("IDEMPOTENCY_INVALID_REQUEST: id")
        assert (await peer.fail("outbox.poll", **space, max=0)).startswith("IDEMPOTENCY_INVALID_REQUEST: max")
        assert (await peer.fail("outbox.poll", namespace="nowhere")).startswith("IDEMPOTENCY_UNKNOWN_NAMESPACE")


async def test_waiting_calls_do_not_hold_up_the_connection(autojump_clock: MockClock) -> None:
    async with serving_rpc(autojump_clock) as server, trio.open_nursery() as nursery:
        peer, other = server.connect(), server.connect()
        space = {"namespace": "default"}
        operation_id = (await other.call("dispatch", **space, key="k", intent={"body": "a"}))["operation_id"]
        [entry] = (await other.call("outbox.poll", **space))["entries"]
        answers: list[dict[str, Any]] = []

        async def wait() -> None:
            answers.append(await peer.call("operation", **space, operation_id=operation_id, wait_ms=60_000))

        nursery.start_soon(wait)
        await trio.sleep(1)
        assert await other.call("ping") == {"result": "pong"}
        await other.call("outbox.ack", **space, **settling(entry))
        await trio.sleep(1)
        assert [answer["state"] for answer in answers] == ["succeeded"]


async def test_a_batch_dispatches(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        ops: list[dict[str, Any]] = [
            {"op": "dispatch", "namespace": "default", "key": f"k{number}", "intent": intent()} for number in range(3)
        ]
        ops += [{"op": "dispatch", "namespace": "default", "key": "k0", "intent": intent("another")}]
        ops += [{"op": "dispatch", "namespace": "default", "key": "k"}]
        ops += [{"op": "poll", "namespace": "default"}]
        told = (await client.post("/v1/batch", {"ops": ops})).json["results"]
        assert [one.get("state") for one in told] == ["queued"] * 3 + [None] * 3
        assert [one.get("proceed") for one in told] == [False] * 5 + [None]
        assert [one["code"] for one in told[3:]] == [
            "IDEMPOTENCY_MISMATCH",
            "IDEMPOTENCY_INVALID_REQUEST",
            "IDEMPOTENCY_INVALID_REQUEST",
        ]


async def test_two_calls_of_a_batch_have_no_order_between_them(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        ops = [
            {"op": "dispatch", "namespace": "default", "key": key, "intent": intent(key), "order_key": order_key}
            for key, order_key in (("a", "acc"), ("b", "acc"), ("c", "other"), ("d", None), ("e", None))
        ]
        told = (await client.post("/v1/batch", {"ops": ops})).json["results"]
        assert [one.get("result") for one in told] == ["accepted", None, "accepted", "accepted", "accepted"]
        assert (told[1]["code"], told[1]["field"]) == ("IDEMPOTENCY_INVALID_REQUEST", "order_key")


async def test_an_ack_is_of_the_entry_that_it_names(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock) as client:
        await dispatched(client, "a")
        [entry] = await polled(client)
        named = {"key": "a", "token": entry["token"]}
        for call in ("ack", "nack"):
            (await client.post(f"{V1}/outbox/{call}", {**named, "id": NO_ID})).problem(409, "STALE_TOKEN")
        held = (await client.post(f"{V1}/reserve", {"key": "held"})).json
        wrong = {"key": "held", "token": held["token"], "id": held["operation_id"]}
        (await client.post(f"{V1}/outbox/ack", wrong)).problem(409, "STALE_TOKEN")
        assert (await client.post(f"{V1}/outbox/ack", {**named, "id": entry["id"]})).json["result"] == "committed"
