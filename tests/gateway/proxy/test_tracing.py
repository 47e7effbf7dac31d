"""A trace goes through the reverse proxy: from its client, by the shards, to the upstream."""

from __future__ import annotations

from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock

from tests.gateway.proxy.rig import Received, proxying
from tests.server.seen import PARENT, TRACE, Seen, about, trace_of


async def test_a_request_from_its_client_to_its_upstream(autojump_clock: MockClock) -> None:
    seen = Seen()
    async with proxying(autojump_clock, tracing=seen.telemetry) as proxy:
        told = await proxy.call(headers=[("traceparent", PARENT), ("tracestate", "a=1")], key="secret")
        assert told.status == 200
        again = await proxy.call(key="secret")
        assert again.status == 200
        [got] = proxy.upstream.requests
    first, replay = (span for span in seen.spans if span.kind is SpanKind.SERVER)
    assert trace_of(first) == TRACE
    assert about(first)["http.response.status_code"] == 200
    assert seen.below(first) == ["reserve", "POST", "commit"]
    # A replay asks no upstream.
    assert seen.below(replay) == ["reserve"]
    sent = seen.one("POST")
    assert sent.kind is SpanKind.CLIENT
    assert sent.context is not None
    assert got.header("traceparent") == [f"00-{TRACE}-{sent.context.span_id:016x}-01"]
    assert got.header("tracestate") == ["a=1"]
    assert about(sent).items() >= {"http.request.method": "POST", "http.response.status_code": 200}.items()
    assert "secret" not in "".join(span.to_json() for span in seen.spans)


async def test_an_upstream_that_breaks_off_is_an_error_of_its_span(autojump_clock: MockClock) -> None:
    async def breaks(received: Received) -> None:
        await received.stream.aclose()

    seen = Seen()
    async with proxying(autojump_clock, behaviour=breaks, tracing=seen.telemetry) as proxy:
        told = await proxy.call()
    [server] = [span for span in seen.spans if span.kind is SpanKind.SERVER]
    assert about(server)["http.response.status_code"] == told.status
    assert seen.below(server) == ["reserve", "POST", "doubt"]
    sent = seen.one("POST")
    assert (about(sent)["error.type"], sent.status.status_code) == ("Lost", StatusCode.ERROR)


async def test_what_leads_nowhere_has_no_route(autojump_clock: MockClock) -> None:
    seen = Seen()
    async with proxying(autojump_clock, tracing=seen.telemetry) as proxy:
        told = await proxy.call("POST", "/nowhere?token=secret")
    [span] = seen.spans
    assert "http.route" not in about(span)
    assert (about(span)["url.path"], about(span)["http.response.status_code"]) == ("/nowhere", told.status)


async def test_without_telemetry_the_clients_own_trace_goes_on_as_it_came(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        await proxy.call(headers=[("traceparent", PARENT)])
        [got] = proxy.upstream.requests
    assert got.header("traceparent") == [PARENT]
