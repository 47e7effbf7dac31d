"""What the doors ask of whoever traces them; ``telemetry.py`` does it with OpenTelemetry, where that is configured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from idemactor.core.commands import Command
from idemactor.core.queries import Query
from idemactor.shard.tracing import Call, TurnTracer

TRACE_FIELDS: Final = ("traceparent", "tracestate")

_FIELD: Final = re.compile(rb"\r\n(traceparent|tracestate):[ \t]*([\x21-\x7e \t]*)", re.IGNORECASE)
"""W3C Trace Context, section 3: the two fields of a request that say where its trace stands."""


class Sent(Protocol):
    """A request to an upstream that is traced."""

    def fields(self) -> tuple[tuple[str, str], ...]:
        """What it says to the upstream of where the trace stands."""

    def ended(self, status: int | None, error: str | None = None) -> None:
        """It is over; ``status`` None: without an answer, for the reason ``error``."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One delivery of an intent, as its trace tells of it.

    Attributes:
        namespace: Whose intent it is.
        operation_id: Of the operation; what ``idemactor operation`` is asked with.
        number: Which attempt this is, from 1.
        origin: Where to: ``http://host:port``.
        host: Of it; of a Unix socket the path.
        port: Of it; 0: none.
        path: What is asked for there, without a query.
        parent: The fields of W3C Trace Context that the intent came with, lower-case.
    """

    namespace: str
    operation_id: str
    number: int
    origin: str
    host: str
    port: int
    path: str
    parent: Mapping[str, str]


class Parent(Protocol):
    """What commands are traced as parts of."""

    def command(self, command: Command) -> Call:
        """A command of it goes to a shard."""


class Called(Parent, Call, Protocol):
    """One MessagePack-RPC call that is traced. Where a single command is all of it, the command's answer ends it."""

    def within(self, namespace: str) -> None:
        """It is about this namespace, to which its caller has a right."""

    def over(self, code: str | None) -> None:
        """It is answered, with an error where there is a code. Only the first time counts."""


class Request(Parent, Protocol):
    """One HTTP request that is traced."""

    def upstream(self, method: str, origin: str, host: str, port: int, path: str) -> Sent:
        """It is sent on.

        Args:
            method: Its method.
            origin: Where to: ``http://host:port``.
            host: Of it; of a Unix socket the path.
            port: Of it; 0: none.
            path: What is asked for there, without a query.
        """

    def ended(self, status: int, error: str | None = None) -> None:
        """It is answered with this status; ``error``: the code of a refusal. Only the first time counts."""


class Tracing(TurnTracer, Protocol):
    """Begins traces. No method may block or raise."""

    def now_ns(self) -> int:
        """The time, nanoseconds since the epoch."""

    def http(self, method: str, route: str | None, path: str, parent: Mapping[str, str], begun_ns: int) -> Request:
        """An HTTP request came.

        Args:
            method: Its method.
            route: The route's template; None: there is none for it.
            path: Its path.
            parent: The fields of W3C Trace Context, lower-case.
            begun_ns: When its first byte was looked at.
        """

    def rpc(self, method: str, parent: str | None, command: Command) -> Call:
        """A MessagePack-RPC call came; ``parent`` is its ``traceparent``."""

    def called(self, method: str | None, parent: str | None) -> Called:
        """A MessagePack-RPC call came that is no single command, or none yet; ``method`` None: there is none such."""

    def delivery(self, attempt: Attempt) -> Sent:
        """An intent is sent to its destination."""

    def crossed(self, parent: str, command: Command | Query) -> Call:
        """A call came from another worker; ``parent`` is where its trace stands there."""


def parent_of(head: bytes) -> dict[str, str]:
    """Where the trace of a request stands, from the bytes of its head. A field that is sent twice counts as absent."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(head):
        lower = name.decode().lower()
        fields[lower] = "" if lower in fields else value.decode().strip(" \t")
    return fields


def path_of(target: str) -> str:
    """A request target without its query, which may hold what is nobody's business."""
    return target.partition("?")[0]
