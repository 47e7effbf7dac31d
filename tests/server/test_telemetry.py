"""A trace follows a call from its door through the shard to its answer, and metrics have the agreed names."""

from __future__ import annotations

import builtins
import sys
from itertools import pairwise
from typing import Any, Final

import pytest
import trio
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.metrics_core import Metric
from trio.testing import MockClock

from idemactor.config.model import ServerConfig, TelemetrySection
from idemactor.errors import StartError
from idemactor.node import telemetry_of
from idemactor.server.operations import inspect_shards
from idemactor.server.telemetry import TRACE_FIELD_CHARS_MAX, TelemetrySettings
from idemactor.server.tracing import parent_of
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.mailbox import Envelope
from idemactor.shard.tracing import traced
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault
from tests.server import test_http_fast as fast
from tests.server import test_rpc_door as rpc
from tests.server.rig import Rig, running
from tests.server.seen import PARENT, TRACE, Seen, about, trace_of
from tests.server.test_http_app import Client
from tests.server.test_http_parity import call
from tests.shard.harness import Call, reserve
from tests.workers import rig as workers_rig

UNSAMPLED: Final = f"00-{TRACE}-b7ad6b7169203331-00"


@pytest.fixture
def seen() -> Seen:
    return Seen()


# --------------------------------------------------------------------------------------------------------------- HTTP


async def test_a_request_from_its_door_to_its_answer(autojump_clock: MockClock, seen: Seen) -> None:
    async with running(autojump_clock, tracing=seen.telemetry) as rig:
        told = await Client(rig).post("/v1/default/reserve", {"key": "secret-key"}, headers=[("traceparent", PARENT)])
        assert told.status == 201
    server = seen.one("POST /v1/{namespace}/reserve")
    assert (server.kind, trace_of(server)) == (SpanKind.SERVER, TRACE)
    assert server.parent is not None
    assert format(server.parent.span_id, "016x") == "b7ad6b7169203331"
    assert about(server) == {
        "http.request.method": "POST",
        "url.path": "/v1/default/reserve",
        "url.scheme": "http",
        "http.route": "/v1/{namespace}/reserve",
        "http.response.status_code": 201,
    }
    assert seen.below(server) == ["reserve"]
    command = seen.one("reserve")
    assert about(command) == {"idemactor.namespace": "default", "idemactor.result": "reserved"}
    assert seen.below(command) == ["queue", "decide", "COMMIT"]
    write = seen.one("COMMIT")
    assert write.kind is SpanKind.CLIENT
    assert about(write).items() >= {"db.system.name": "sqlite", "db.operation.name": "COMMIT"}.items()
    # One after the other, and all within their call.
    times = [(span.start_time, span.end_time) for span in map(seen.one, ("queue", "decide", "COMMIT"))]
    flat = [at for pair in times for at in pair if at is not None]
    assert flat == sorted(flat)
    assert (command.start_time or 0) <= flat[0]
    assert flat[-1] <= (command.end_time or 0) <= (server.end_time or 0)
    assert {trace_of(span) for span in seen.spans} == {TRACE}
    assert "secret-key" not in "".join(span.to_json() for span in seen.spans)


async def test_the_fast_lane_traces_as_the_app_does(mock_clock: MockClock, seen: Seen) -> None:
    async with fast.serving(mock_clock, tracing=seen.telemetry) as server:
        peer, head = server.connect(), f"traceparent: {PARENT}".encode()
        await peer.send(call("reserve", head, key="k"))
        assert (await peer.answer())[0] == 201
        await peer.send(call("reserve", head, nonsense=1))
        assert (await peer.answer())[0] == 400
    first, second = [span for span in seen.spans if span.kind is SpanKind.SERVER]
    assert first.name == second.name == "POST /v1/{namespace}/reserve"
    assert (trace_of(first), trace_of(second)) == (TRACE, TRACE)
    assert about(first)["http.response.status_code"] == 201
    assert seen.below(first) == ["reserve"]
    assert seen.below(seen.one("reserve")) == ["queue", "decide", "COMMIT"]
    assert about(second)["http.response.status_code"] == 400
    # A refusal is the client's mistake, no error of the server's.
    assert second.status.status_code is StatusCode.UNSET


async def test_a_request_that_is_refused_before_its_body_is_traced(mock_clock: MockClock, seen: Seen) -> None:
    async with fast.serving(mock_clock, tracing=seen.telemetry) as server:
        server.rig.context.arrivals.bytes_max = 10_000
        peer = server.connect()
        await peer.send(call("reserve", f"traceparent: {PARENT}".encode(), key="k", payload="x" * 20_000)[:10_000])
        await fast.settled()
        assert server.counted("idemactor_overloaded_total") == 1
        assert (await peer.answer())[0] == 503
    [span] = [span for span in seen.spans if span.kind is SpanKind.SERVER]
    assert (span.name, trace_of(span)) == ("POST /v1/{namespace}/reserve", TRACE)
    assert about(span)["http.response.status_code"] == 503


async def test_each_command_of_a_batch(autojump_clock: MockClock, seen: Seen) -> None:
    ops = [{"op": "reserve", "namespace": "default", "key": f"k{number}"} for number in range(3)]
    async with running(autojump_clock, tracing=seen.telemetry, shards=1) as rig:
        assert (await Client(rig).post("/v1/batch", {"ops": ops})).status == 200
    server = seen.one("POST /v1/batch")
    assert seen.below(server) == ["reserve"] * 3
    writes = [span for span in seen.spans if span.name == "COMMIT"]
    assert [about(span)["db.operation.batch.size"] for span in writes] == [3] * 3


async def test_what_a_turn_leaves_to_the_next_is_in_the_queue_again(autojump_clock: MockClock, seen: Seen) -> None:
    ops: list[dict[str, object]] = [{"namespace": "default", "key": f"k{number}"} for number in range(3)]
    async with running(autojump_clock, tracing=seen.telemetry, shards=1) as rig:
        [shard] = rig.context.router.shards
        assert isinstance(shard, Shard)
        assert shard._ledger is not None
        shard._ledger._cache_bytes_max = 0
        await Client(rig).post("/v1/batch", {"ops": [{"op": "reserve"} | op for op in ops]})
        shard._settings, shard._piece = ShardSettings(turn_bytes_max=1), 1
        await Client(rig).post("/v1/batch", {"ops": [{"op": "get"} | op for op in ops]})
    gets = [span for span in seen.spans if span.name == "get"]
    assert [seen.below(span) for span in gets] == [["queue"] * times + ["decide"] for times in (1, 2, 3)]
    below = [span for span in seen.spans if span.parent is not None and span.parent.span_id == gets[2].context.span_id]
    for before, behind in pairwise(below):
        assert before.end_time is not None
        assert behind.start_time is not None
        assert behind.start_time >= before.end_time


async def test_a_write_that_failed_is_seen(autojump_clock: MockClock, seen: Seen) -> None:
    async with running(autojump_clock, tracing=seen.telemetry, shards=1) as rig:
        rig.disks[0].faults.append(Fault(CommitResult.FAILED))
        assert (await Client(rig).post("/v1/default/reserve", {"key": "k"})).status == 503
    assert seen.below(seen.one("reserve")) == ["queue", "decide", "failed"]
    for name in ("failed", "reserve", "POST /v1/{namespace}/reserve"):
        assert seen.one(name).status.status_code is StatusCode.ERROR
        assert "error.type" in about(seen.one(name))


async def test_a_path_that_is_nothing_is_no_name(autojump_clock: MockClock, seen: Seen) -> None:
    async with running(autojump_clock, tracing=seen.telemetry) as rig:
        await Client(rig).get("/no/such/path")
        await Client(rig).get("/livez")
    assert [span.name for span in seen.spans] == ["GET", "GET /livez"]
    points = seen.metrics()["http.server.request.duration"]
    assert all("url.path" not in point.attributes for point in points)


async def test_who_began_the_trace_decides_whether_it_is_kept(autojump_clock: MockClock) -> None:
    nothing, everything = Seen(TelemetrySettings("http://127.0.0.1:1", "idemactor", 0, 1_000)), Seen()
    for seen, parents, kept in ((nothing, ("", PARENT), 1), (everything, ("", UNSAMPLED), 1)):
        async with running(autojump_clock, tracing=seen.telemetry) as rig:
            for parent in parents:
                headers = [("traceparent", parent)] if parent else []
                await Client(rig).post("/v1/default/reserve", {"key": "k"}, headers=headers)
        assert len([span for span in seen.spans if span.kind is SpanKind.SERVER]) == kept


def test_where_a_trace_stands_in_a_head() -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\nTraceParent:  00-a-b-01 \r\ntracestate: a=1\r\n\r\n"
    assert parent_of(head) == {"traceparent": "00-a-b-01", "tracestate": "a=1"}
    assert parent_of(b"POST / HTTP/1.1\r\ntraceparent: a\r\ntraceparent: b\r\n\r\n") == {"traceparent": ""}
    assert parent_of(b"POST / HTTP/1.1\r\nx-traceparent: a\r\n\r\n") == {}


# ------------------------------------------------------------------------------------------------- RPC, other workers


async def test_a_trace_that_is_too_long_to_be_one_fills_no_log(
    autojump_clock: MockClock, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    async with rpc.serving(autojump_clock, tracing=seen.telemetry) as server:
        for parent in ("0" * (TRACE_FIELD_CHARS_MAX + 1), PARENT + "-" + "0" * TRACE_FIELD_CHARS_MAX):
            await server.connect().call("ping", traceparent=parent)
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_a_call_over_rpc(autojump_clock: MockClock, seen: Seen) -> None:
    async with rpc.serving(autojump_clock, tracing=seen.telemetry) as server:
        peer = server.connect()
        await peer.call("reserve", namespace="default", key="k", traceparent=PARENT)
        await peer.fail("reserve", namespace="default", key="", traceparent=PARENT)
    good, bad = (span for span in seen.spans if span.kind is SpanKind.SERVER)
    assert (good.name, trace_of(good), trace_of(bad)) == ("idemactor/reserve", TRACE, TRACE)
    assert about(good) == {
        "rpc.system.name": "msgpack_rpc",
        "rpc.method": "idemactor/reserve",
        "idemactor.namespace": "default",
        "idemactor.result": "reserved",
    }
    assert seen.below(good) == ["queue", "decide", "COMMIT"]
    assert about(bad)["error.type"] == about(bad)["rpc.response.status_code"] == "IDEMPOTENCY_INVALID_REQUEST"
    assert bad.status.status_code is StatusCode.ERROR
    points = seen.metrics()["rpc.server.call.duration"]
    assert sum(point.count for point in points) == 2


async def test_each_call_over_rpc_is_one_span(autojump_clock: MockClock, seen: Seen) -> None:
    async with rpc.serving(autojump_clock, tracing=seen.telemetry, shards=2) as server:
        peer = server.connect()
        asked: list[tuple[str, dict[str, Any]]] = [
            ("ping", {}),
            ("policy", {"namespace": "default"}),
            ("shards", {}),
            ("stuck", {}),
            ("records", {"namespace": "default"}),
            ("incidents", {"namespace": "default"}),
            ("outbox.poll", {"namespace": "default"}),
        ]
        for method, members in asked:
            await peer.call(method, **members, traceparent=PARENT)
        refused: list[tuple[str, dict[str, Any]]] = [
            ("policy", {"namespace": "nowhere"}),
            ("acknowledge", {"namespace": "default", "id": "7"}),
            ("operation", {"namespace": "default", "operation_id": "0190f8f0-0000-7000-8000-000000000000"}),
            ("outbox.ack", {"namespace": "default"}),
            ("secret-method", {}),
        ]
        for method, members in refused:
            await peer.fail(method, **members, traceparent=PARENT)
    spans = [span for span in seen.spans if span.kind is SpanKind.SERVER]
    assert {trace_of(span) for span in spans} == {TRACE}
    good, bad = spans[: len(asked)], spans[len(asked) :]
    assert [span.name for span in good] == [f"idemactor/{method}" for method, _ in asked]
    assert all("error.type" not in about(span) for span in good)
    namespaces = [about(span).get("idemactor.namespace") for span in good]
    assert namespaces == [members.get("namespace") for _, members in asked]
    assert [span.name for span in bad] == [f"idemactor/{method}" for method, _ in refused[:-1]] + ["msgpack_rpc"]
    assert [about(span)["error.type"].removeprefix("IDEMPOTENCY_") for span in bad] == [
        "UNKNOWN_NAMESPACE",
        "NOT_FOUND",
        "NOT_FOUND",
        "INVALID_REQUEST",
        "INVALID_REQUEST",
    ]
    # A namespace that there is none of is what a client made up.
    assert "idemactor.namespace" not in about(bad[0])
    points = seen.metrics()["rpc.server.call.duration"]
    assert sum(point.count for point in points) == len(spans)
    assert "_OTHER" in {point.attributes["rpc.method"] for point in points}
    assert "secret-method" not in "".join(span.to_json() for span in seen.spans)


async def test_a_batch_over_rpc_has_a_child_for_each_command(autojump_clock: MockClock, seen: Seen) -> None:
    ops = [{"op": "reserve", "namespace": "default", "key": f"k{number}"} for number in range(3)]
    async with rpc.serving(autojump_clock, tracing=seen.telemetry, shards=1) as server:
        peer = server.connect()
        await peer.call("batch", ops=[*ops, {"op": "nothing"}], traceparent=PARENT)
        await peer.call("batch", ops=[])
        await peer.fail("batch", ops=5)
    whole, empty, wrong = [span for span in seen.spans if span.name == "idemactor/batch"]
    assert trace_of(whole) == TRACE
    assert seen.below(whole) == ["reserve"] * 3
    assert [seen.below(span) for span in seen.spans if span.name == "reserve"] == [["queue", "decide", "COMMIT"]] * 3
    assert "error.type" not in {**about(whole), **about(empty)}
    assert about(wrong)["error.type"] == "IDEMPOTENCY_INVALID_REQUEST"


async def test_a_call_whose_connection_ends_is_a_span_that_failed(autojump_clock: MockClock, seen: Seen) -> None:
    async with rpc.serving(autojump_clock, tracing=seen.telemetry) as server:
        peer = server.connect()
        await peer.send(rpc.request(1, "outbox.poll", {"namespace": "default", "wait_ms": 60_000}))
        await trio.sleep(1)
        await peer.stream.aclose()
        await trio.sleep(5)
        assert about(seen.one("idemactor/outbox.poll"))["error.type"] == "cut_off"


async def test_a_server_that_does_not_trace_takes_no_offence(autojump_clock: MockClock) -> None:
    async with rpc.serving(autojump_clock) as server:
        peer = server.connect()
        assert (await peer.call("reserve", namespace="default", key="k", traceparent=PARENT))["result"] == "reserved"
        await peer.call("batch", ops=[], traceparent=PARENT)


async def test_a_caller_that_waits_is_one_span(autojump_clock: MockClock, seen: Seen) -> None:
    async with running(autojump_clock, tracing=seen.telemetry, shards=1) as rig:
        client = Client(rig)
        held = await client.post("/v1/default/reserve", {"key": "k"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.post, "/v1/default/reserve", {"key": "k", "wait_ms": 5_000})
            await trio.sleep(1)
            await client.post("/v1/default/release", {"key": "k", "token": held.json["token"]})
    waited = [span for span in seen.spans if span.name == "reserve"][-1]
    assert about(waited)["idemactor.result"] == "reserved"
    assert seen.below(waited)[:2] == ["queue", "decide"]


async def test_a_trace_crosses_to_the_worker_that_owns_the_key(seen: Seen) -> None:
    async with workers_rig.running(2, tracing=seen.telemetry) as workers:
        for key in ("a", "b", "c", "d", "e", "f"):
            command = reserve(key)
            caller = Call(command)
            began = seen.telemetry.rpc("reserve", PARENT, command)
            workers[0].router.route([traced(Envelope(command, caller, None), began)])
            await caller.wait()
    servers = [span for span in seen.spans if span.kind is SpanKind.SERVER]
    ways = {tuple(seen.below(span)) for span in servers}
    assert ways == {("queue", "decide", "COMMIT"), ("forwarded reserve",)}
    forwarded = [span for span in seen.spans if span.name == "forwarded reserve"]
    assert {tuple(seen.below(span)) for span in forwarded} == {("queue", "decide", "COMMIT")}
    assert {trace_of(span) for span in seen.spans} == {TRACE}


# ------------------------------------------------------------------------------------------------------------- metrics


async def test_the_servers_own_metrics_are_sent_too(autojump_clock: MockClock, seen: Seen) -> None:
    async with running(autojump_clock, tracing=seen.telemetry) as rig, trio.open_nursery() as nursery:
        await Client(rig).post("/v1/default/reserve", {"key": "k"})
        nursery.start_soon(seen.telemetry.run, lambda: families(rig))
        await trio.sleep(2.5)
        nursery.cancel_scope.cancel()
    found = seen.metrics()
    [pending] = found["idemactor.pending"]
    assert (pending.value, dict(pending.attributes)) == (1, {"tenant": "default", "namespace": "default"})
    commands = [(point.value, dict(point.attributes)) for point in found["idemactor.commands"] if point.value]
    assert commands == [(1, {"command": "reserve", "result": "reserved"})]
    [duration] = found["http.server.request.duration"]
    assert (duration.count, duration.attributes["http.response.status_code"]) == (1, 201)


async def families(rig: Rig) -> list[Metric]:
    return rig.context.metrics.families(await inspect_shards(rig.context), rig.context.now_ms())


# ----------------------------------------------------------------------------------------------------------- on or off


async def test_it_is_off_where_nothing_is_configured() -> None:
    async with telemetry_of(ServerConfig()) as telemetry:
        assert telemetry is None


async def test_packages_that_are_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return whole(name, *rest)

    monkeypatch.delitem(sys.modules, "idemactor.server.telemetry", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    config = ServerConfig(telemetry=TelemetrySection(endpoint="http://127.0.0.1:4318"))
    with pytest.raises(StartError, match=r"opentelemetry is not installed: pip install 'idemactor\[otel\]'"):
        async with telemetry_of(config):
            pass
