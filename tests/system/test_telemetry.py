"""What a real server, of one process or of several, sends to a collector: OTLP over HTTP, as its packages encode it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from idemactor.client.sync import Client
from tests.system.process import Server, assert_calm, eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """Takes what is sent to it.

    Attributes:
        spans: As they came.
        metrics: The names of those that came.
        services: What the senders call themselves.
        parents: The ``traceparent`` of each delivery: it is a destination as well.
    """

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: set[str] = set()
        self.services: set[str] = set()
        self.parents: list[str | None] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/orders":
                    collector.parents.append(self.headers["traceparent"])
                else:
                    collector.take(self.path, body, dict(self.headers))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        assert headers.get("Content-Encoding", "identity") == "identity"
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for resource in traces.resource_spans:
                self._note(resource.resource)
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            metrics = ExportMetricsServiceRequest.FromString(body)
            for found in metrics.resource_metrics:
                self._note(found.resource)
                self.metrics |= {metric.name for scope in found.scope_metrics for metric in scope.metrics}

    def _note(self, resource: Any) -> None:
        self.services |= {a.value.string_value for a in resource.attributes if a.key.startswith("service.")}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_collector_is_sent(home: Path, collector: Collector, workers: int) -> None:
    config = f"""
        [telemetry]
        endpoint = "{collector.endpoint}"
        service_name = "orders"
        interval_ms = 300
    """
    with Server(home, config, flags=["--workers", str(workers), "--shards", "4"]) as server:
        with server.http_client() as http, server.rpc_client() as rpc:
            for number in range(8):
                parent = f"00-{TRACE}-{number + 1:016x}-01"
                told = http.post("/v1/default/reserve", {"key": f"http-{number}"}, traceparent=parent)
                assert told.status == 201
                rpc.call("reserve", key=f"rpc-{number}", traceparent=parent)
        eventually(lambda: {"http.server.request.duration", "idemactor.pending"} <= collector.metrics, 20)
        # What has not left yet does at the end.
        assert server.terminate() == 0
    assert_calm(server)
    assert {span.trace_id.hex() for span in collector.spans if span.name.endswith("reserve")} == {TRACE}
    names = [span.name for span in collector.spans]
    assert names.count("POST /v1/{namespace}/reserve") == 8
    assert names.count("idemactor/reserve") == 8
    assert names.count("COMMIT") == names.count("queue") == 16
    assert ("forwarded reserve" in names) == (workers > 1)
    assert "orders" in collector.services
    assert ("worker-1" in collector.services) == (workers > 1)


def test_a_trace_goes_through_the_client_the_server_and_the_destination(home: Path, collector: Collector) -> None:
    config = f"""
        [telemetry]
        endpoint = "{collector.endpoint}"
        [namespaces.orders.dispatch]
        url = "{collector.endpoint}/orders"
    """
    parent = f"00-{TRACE}-{1:016x}-01"
    span = trace.NonRecordingSpan(
        trace.SpanContext(int(TRACE, 16), 1, is_remote=False, trace_flags=trace.TraceFlags(1))
    )
    with Server(home, config) as server:
        with Client(server.rpc) as client, trace.use_span(span):
            client.batch([{"op": "reserve", "namespace": "orders", "key": "a"}])
            assert list(client.records("orders", contested=True)) == []
            operation = client.dispatch("orders", "k", b"{}", headers=[("traceparent", parent)])
        eventually(lambda: collector.parents != [], 20)
        assert server.terminate() == 0
    named = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    assert {"idemactor/batch", "idemactor/records", "idemactor/dispatch", "POST"} <= named.keys()
    assert {named[name].parent_span_id.hex() for name in ("idemactor/batch", "idemactor/records", "POST")} == {
        f"{1:016x}"
    }
    assert collector.parents == [f"00-{TRACE}-{named['POST'].span_id.hex()}-01"]
    told = {attribute.key: attribute.value for attribute in named["POST"].attributes}
    assert told["idemactor.operation_id"].string_value == operation.operation_id
    assert_calm(server)


def test_a_collector_that_is_away_harms_nobody(home: Path) -> None:
    config = '[telemetry]\nendpoint = "http://127.0.0.1:1"\ninterval_ms = 200\n'
    with Server(home, config) as server:
        with server.http_client() as client:
            for number in range(50):
                assert client.call("reserve", key=f"k{number}").status == 201
        assert server.terminate() == 0
    # What the library says of it is a line of the log like any other.
    assert all(line.startswith("{") for line in server.log.splitlines())
