"""Traces and metrics by OpenTelemetry (the extra ``otel``), in the words of its semantic conventions.

A span of a door (kind server: HTTP, RPC) has a child for each stretch of a command's way: ``queue`` (the mailbox),
``decide`` and ``COMMIT`` (the write that the answer waits for). They are made when a turn is over, with the times that
were noted meanwhile: the shard does not wait for any of it. Neither a key nor a payload is in any attribute.

Exporting is the library's own thread. This module is imported only where telemetry is configured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.metrics_core import Metric

from idemactor import __version__
from idemactor.core.commands import Command
from idemactor.core.queries import Query
from idemactor.observability import logs
from idemactor.observability.words import snake
from idemactor.server.tracing import Attempt, Called
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.tracing import Call, Traced, TurnTrace
from idemactor.wire.refusals import refusal_of

SCOPE: Final = "idemactor"
RPC_SYSTEM: Final = "msgpack_rpc"
SECONDS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SHUTDOWN_MS_MAX: Final = 2_000
"""How long a server that stops waits for the last spans to leave."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()

TRACE_FIELD_CHARS_MAX: Final = 512
"""What is longer is as if it were not there; the library would log a line for each, and anybody can send some."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
"""What ``http.request.method`` may say; anything else is ``_OTHER`` (semantic conventions for HTTP spans)."""
_UNBOUNDED: Final = frozenset({"url.path", "http.request.method_original"})
"""What a client chooses is no dimension of a metric."""
_NS_PER_S: Final = 1_000_000_000
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500

Attributes = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Where to send what.

    Attributes:
        endpoint: The collector's address for OTLP over HTTP, without ``/v1/...``.
        service_name: ``service.name``.
        sample_percent: How many of the traces that begin here are kept; of others their beginner has decided.
        interval_ms: How often metrics are sent, milliseconds.
    """

    endpoint: str
    service_name: str
    sample_percent: int
    interval_ms: int


class Telemetry:
    """See above; ``server.tracing.Tracing`` of one process.

    Args:
        settings: See there.
        worker: Which of several processes this is; None: the only one.
        processor: Takes finished spans; None: sends them to the endpoint.
        reader: Reads metrics; None: sends them there.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        worker: int | None = None,
        *,
        processor: SpanProcessor | None = None,
        reader: MetricReader | None = None,
    ) -> None:
        _log_as_we_do()
        base = settings.endpoint.rstrip("/")
        about: Attributes = {"service.name": settings.service_name, "service.version": __version__}
        if worker is not None:
            about["service.instance.id"] = f"worker-{worker}"
        resource = Resource.create(about)
        sampler = ParentBased(TraceIdRatioBased(settings.sample_percent / 100))
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces")))
        self._tracer = self._provider.get_tracer(SCOPE, __version__)
        reader = reader or PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{base}/v1/metrics"), export_interval_millis=settings.interval_ms
        )
        self._meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._meter = self._meters.get_meter(SCOPE, __version__)
        histogram = partial(self._meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=SECONDS_BOUNDS)
        self._http_seconds = histogram("http.server.request.duration")
        self._rpc_seconds = histogram("rpc.server.call.duration")
        self._interval_s = settings.interval_ms / 1_000
        self._seen: dict[str, Metric] = {}

    # --------------------------------------------------------------------------------------------------------- tracing

    def now_ns(self) -> int:
        """The time, nanoseconds since the epoch."""
        return time.time_ns()

    def http(self, method: str, route: str | None, path: str, parent: Mapping[str, str], begun_ns: int) -> HttpRequest:
        """An HTTP request came."""
        known = method if method in _METHODS else "_OTHER"
        about: Attributes = {"http.request.method": known, "url.path": path, "url.scheme": "http"}
        if known != method:
            about["http.request.method_original"] = method
        if route is not None:
            about["http.route"] = route
        name = f"{known if known == method else 'HTTP'} {route}" if route is not None else known
        span = self._begin(name, SpanKind.SERVER, _context_of(parent), begun_ns, about)

        def told(seconds: float, ended: Attributes) -> None:
            kept = {key: value for key, value in about.items() if key not in _UNBOUNDED}
            self._http_seconds.record(seconds, {**kept, **ended})

        return HttpRequest(self, span, begun_ns, told)

    def rpc(self, method: str, parent: str | None, command: Command) -> Call:
        """A MessagePack-RPC call came."""
        return self._rpc(method, parent, command.identity.namespace)

    def called(self, method: str | None, parent: str | None) -> Called:
        """A MessagePack-RPC call came that is no single command, or none yet."""
        return self._rpc(method, parent, None)

    def _rpc(self, method: str | None, parent: str | None, namespace: str | None) -> _RpcCall:
        # What a client makes up is no name of a span, and no dimension of a metric.
        name, known = (RPC_SYSTEM, "_OTHER") if method is None else (f"{SCOPE}/{method}",) * 2
        about: Attributes = {"rpc.system.name": RPC_SYSTEM, "rpc.method": known}
        begun_ns = self.now_ns()
        mine = {} if namespace is None else {"idemactor.namespace": namespace}
        context = _context_of({} if parent is None else {"traceparent": parent})
        span = self._begin(name, SpanKind.SERVER, context, begun_ns, {**about, **mine})

        def told(seconds: float, ended: Attributes) -> None:
            self._rpc_seconds.record(seconds, {**about, **ended})

        return _RpcCall(self, span, begun_ns, told)

    def delivery(self, attempt: Attempt) -> Sent:
        """An intent is sent to its destination: below whatever its own fields say that it belongs to."""
        about = _sent_to("POST", attempt.origin, attempt.host, attempt.port, attempt.path)
        about["idemactor.namespace"] = attempt.namespace
        about["idemactor.operation_id"] = attempt.operation_id
        about["idemactor.attempt"] = attempt.number
        return Sent(self.sent(_context_of(attempt.parent, Context()), "POST", about))

    def crossed(self, parent: str, command: Command | Query) -> Call:
        """A call came from another worker."""
        return self.child(_context_of({"traceparent": parent}), f"forwarded {_name(command)}", command)

    def child(self, context: Context, name: str, command: Command | Query) -> _InnerCall:
        """A command below something else."""
        identity = getattr(command, "identity", None)
        about: Attributes = {} if identity is None else {"idemactor.namespace": identity.namespace}
        return _InnerCall(self._begin(name, SpanKind.INTERNAL, context, self.now_ns(), about))

    def sent(self, context: Context, name: str, about: Attributes) -> Span:
        """A request to an upstream."""
        return self._begin(name, SpanKind.CLIENT, context, self.now_ns(), about)

    def turn(self, shard: int, envelopes: Sequence[Envelope]) -> TurnTrace | None:
        """A turn of a shard begins."""
        found = [tag for envelope in envelopes if isinstance(tag := envelope.tag, Traced)]
        return _Turn(self, shard, found) if found else None

    def stretch(
        self, below: Traced, name: str, begun_ns: int, ended_ns: int, about: Attributes, error: str | None = None
    ) -> None:
        """A span that is over, below that of a call."""
        call = below.call
        assert isinstance(call, _Spanned)
        kind = SpanKind.CLIENT if "db.system.name" in about else SpanKind.INTERNAL
        span = self._begin(name, kind, trace.set_span_in_context(call.span), begun_ns, about)
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)

    def _begin(self, name: str, kind: SpanKind, context: Context, begun_ns: int, about: Attributes) -> Span:
        return self._tracer.start_span(name, context, kind, about, start_time=begun_ns)

    # --------------------------------------------------------------------------------------------------------- metrics

    async def run(self, collect: Callable[[], Awaitable[Iterable[Metric]]]) -> None:
        """Look at the server's own metrics every interval, until cancelled; they are sent beside the others.

        The thread that sends them must not look itself: what it would see may be half changed.
        """
        while True:
            for family in await collect():
                self._note(family)
            await trio.sleep(self._interval_s)

    def _note(self, family: Metric) -> None:
        if family.type not in ("counter", "gauge"):
            return  # Durations have their own instruments.
        known = family.name in self._seen
        self._seen[family.name] = family
        if not known:
            name = family.name.replace("_", ".", 1)
            create = (
                self._meter.create_observable_counter
                if family.type == "counter"
                else self._meter.create_observable_gauge
            )
            create(name, [partial(self._observe, family.name)], description=family.documentation)

    def _observe(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sample.value, sample.labels) for sample in self._seen[name].samples]

    # ----------------------------------------------------------------------------------------------------------- ending

    async def close(self) -> None:
        """Send what is left, within ``SHUTDOWN_MS_MAX``."""

        def end() -> None:
            self._provider.force_flush(SHUTDOWN_MS_MAX)
            self._meters.force_flush(SHUTDOWN_MS_MAX)

        with trio.move_on_after(SHUTDOWN_MS_MAX / 1_000):
            await trio.to_thread.run_sync(end, abandon_on_cancel=True)


def _log_as_we_do() -> None:
    """What the library has to say is a line of our log, not a text between its lines."""
    theirs = logging.getLogger("opentelemetry")
    theirs.handlers[:] = logging.getLogger(logs.ROOT).handlers
    theirs.propagate = False


class _Spanned:
    """Something that has a span, and ends it once."""

    def __init__(self, span: Span) -> None:
        self.span = span

    def carrier(self) -> str:
        """Where the trace stands."""
        fields: dict[str, str] = {}
        _PROPAGATOR.inject(fields, trace.set_span_in_context(self.span))
        return fields.get("traceparent", "")


class _InnerCall(_Spanned):
    """A command below a request of several, or of another process."""

    def ended(self, answer: Answer) -> None:
        """It is answered."""
        self.span.set_attribute("idemactor.result", _name(answer))
        refusal = refusal_of(answer)
        if refusal is not None and refusal.error:
            self.span.set_attribute("error.type", str(refusal.code))
            self.span.set_status(Status(StatusCode.ERROR))
        self.span.end()


class _RpcCall(_Spanned):
    """A call over MessagePack-RPC."""

    def __init__(
        self, telemetry: Telemetry, span: Span, begun_ns: int, told: Callable[[float, Attributes], None]
    ) -> None:
        super().__init__(span)
        self._telemetry = telemetry
        self._begun_ns = begun_ns
        self._told = told
        self._over = False

    def within(self, namespace: str) -> None:
        """It is about this namespace."""
        self.span.set_attribute("idemactor.namespace", namespace)

    def command(self, command: Command) -> Call:
        """One of several commands of it goes to a shard."""
        return self._telemetry.child(trace.set_span_in_context(self.span), _name(command), command)

    def ended(self, answer: Answer) -> None:
        """It is answered."""
        self.span.set_attribute("idemactor.result", _name(answer))
        refusal = refusal_of(answer)
        self.over(str(refusal.code) if refusal is not None and refusal.error else None)

    def over(self, code: str | None) -> None:
        """It ends, with an error where there is a code."""
        if self._over:
            return
        self._over = True
        ended: Attributes = {} if code is None else {"error.type": code, "rpc.response.status_code": code}
        self.span.set_attributes(ended)
        if code is not None:
            self.span.set_status(Status(StatusCode.ERROR))
        ended_ns = time.time_ns()
        self.span.end(ended_ns)
        self._told((ended_ns - self._begun_ns) / _NS_PER_S, ended)


class HttpRequest:
    """A request over HTTP: ``server.tracing.Request``."""

    def __init__(
        self, telemetry: Telemetry, span: Span, begun_ns: int, told: Callable[[float, Attributes], None]
    ) -> None:
        self.span = span
        self._telemetry = telemetry
        self._begun_ns = begun_ns
        self._told = told
        self._over = False

    def command(self, command: Command) -> Call:
        """A command of it goes to a shard."""
        context = trace.set_span_in_context(self.span)
        return self._telemetry.child(context, _name(command), command)

    def upstream(self, method: str, origin: str, host: str, port: int, path: str) -> Sent:
        """It is sent on."""
        known = method if method in _METHODS else "_OTHER"
        about = _sent_to(known, origin, host, port, path)
        return Sent(self._telemetry.sent(trace.set_span_in_context(self.span), known, about))

    def ended(self, status: int, error: str | None = None) -> None:
        """It is answered."""
        if self._over:
            return
        self._over = True
        ended: Attributes = {"http.response.status_code": status}
        if status >= _SERVER_ERROR:
            # A refusal is no error of the server's (semantic conventions for HTTP spans, "Status").
            ended["error.type"] = error or str(status)
            self.span.set_status(Status(StatusCode.ERROR))
        elif error is not None:
            self.span.set_attribute("idemactor.code", error)
        self.span.set_attributes(ended)
        ended_ns = time.time_ns()
        self.span.end(ended_ns)
        self._told((ended_ns - self._begun_ns) / _NS_PER_S, ended)


class Sent:
    """A request to an upstream: ``server.tracing.Sent``."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def fields(self) -> tuple[tuple[str, str], ...]:
        """What it says to the upstream of where the trace stands."""
        fields: dict[str, str] = {}
        _PROPAGATOR.inject(fields, trace.set_span_in_context(self._span))
        return tuple(fields.items())

    def ended(self, status: int | None, error: str | None = None) -> None:
        """It is over."""
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if status is None or status >= _CLIENT_ERROR:
            # For who asks, a refusal is an error as well (semantic conventions for HTTP spans, "Status").
            self._span.set_attribute("error.type", error or str(status))
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _Turn:
    """The stretches of the traced calls of one turn: ``shard.tracing.TurnTrace``."""

    def __init__(self, telemetry: Telemetry, shard: int, calls: Sequence[Traced]) -> None:
        self._telemetry = telemetry
        self._calls = calls
        self._about: Attributes = {"idemactor.shard": shard}
        self._at_ns = time.time_ns()
        for call in calls:
            telemetry.stretch(call, "queue", min(call.put_ns, self._at_ns), self._at_ns, self._about)

    def put_back(self, envelopes: Sequence[Envelope]) -> None:
        """These are left to the next turn: from here on they are in the queue again."""
        left = {id(envelope.tag) for envelope in envelopes}
        for call in self._calls:
            if id(call) in left:
                call.put_ns = self._at_ns
        self._calls = [call for call in self._calls if id(call) not in left]

    def decided(self) -> None:
        """Everything in the turn is decided."""
        self._next("decide", self._about)

    def written(self, commands: int, sync_s: float | None) -> None:
        """It is durable."""
        if sync_s is None:
            return
        about: Attributes = {**self._about, "db.system.name": "sqlite", "db.operation.name": "COMMIT"}
        if commands > 1:
            # The attribute is only for real batches (semantic conventions for database spans).
            about["db.operation.batch.size"] = commands
        self._next("COMMIT", {**about, "idemactor.sync_seconds": sync_s})

    def failed(self, error: BaseException) -> None:
        """It could not be decided or written."""
        self._next("failed", self._about, type(error).__name__)

    def _next(self, name: str, about: Attributes, error: str | None = None) -> None:
        ended_ns = time.time_ns()
        for call in self._calls:
            self._telemetry.stretch(call, name, self._at_ns, ended_ns, about, error)
        self._at_ns = ended_ns


def _context_of(fields: Mapping[str, str], beside: Context | None = None) -> Context:
    """Where the trace stands that the fields name."""
    known = {name: value for name, value in fields.items() if len(value) <= TRACE_FIELD_CHARS_MAX}
    return _PROPAGATOR.extract(known, beside)


def _sent_to(method: str, origin: str, host: str, port: int, path: str) -> Attributes:
    """What says where a request goes (semantic conventions for HTTP spans, "HTTP client span")."""
    about: Attributes = {"http.request.method": method, "server.address": host, "url.full": f"{origin}{path}"}
    if port:
        about["server.port"] = port
    return about


def _name(value: object) -> str:
    return snake(type(value).__name__)
