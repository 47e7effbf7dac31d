"""Telemetry that keeps what it would send."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from idemactor.server.telemetry import Telemetry, TelemetrySettings

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT: Final = f"00-{TRACE}-b7ad6b7169203331-01"
SETTINGS: Final = TelemetrySettings("http://127.0.0.1:1", "idemactor", 100, 1_000)


class Seen:
    """Telemetry that keeps everything."""

    def __init__(self, settings: TelemetrySettings = SETTINGS) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.telemetry = Telemetry(settings, processor=SimpleSpanProcessor(self._spans), reader=self._reader)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.spans if span.name == name]
        return found

    def below(self, parent: ReadableSpan) -> list[str]:
        """The names of its children, in the order of their beginnings."""
        assert parent.context is not None
        children = [s for s in self.spans if s.parent is not None and s.parent.span_id == parent.context.span_id]
        return [span.name for span in sorted(children, key=lambda span: span.start_time or 0)]

    def metrics(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format(span.context.trace_id, "032x")


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
