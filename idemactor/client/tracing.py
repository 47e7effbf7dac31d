"""Where the caller's own trace stands, for the servers that it asks: OpenTelemetry's, if the program uses that.

It is looked for once, at the first call. Where it is not installed, a call costs one look at a variable more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar

_carried: ContextVar[str | None] = ContextVar("idemactor_traceparent", default=None)


def traceparent() -> str | None:
    """The ``traceparent`` (W3C Trace Context) of the span that is active here; None: there is none."""
    read = _reader()
    return None if read is None else _carried.get() or read()


def carry(parent: str | None) -> None:
    """What this task asks is a part of ``parent``: it asks for somebody in a thread, whose context it does not have."""
    _carried.set(parent)


@functools.cache
def _reader() -> Callable[[], str | None] | None:
    """What reads it; None: OpenTelemetry is not installed."""
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return None
    propagator = TraceContextTextMapPropagator()

    def read() -> str | None:
        fields: dict[str, str] = {}
        propagator.inject(fields)
        return fields.get("traceparent")

    return read
