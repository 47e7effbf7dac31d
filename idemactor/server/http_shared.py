"""What all connections of the HTTP door have in common: its limits, who is told what happens, and draining."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import AppWrapper, LifespanState

from idemactor.server.backlog import Backlog
from idemactor.server.http_protocol import Phase
from idemactor.server.listeners import CONNECTIONS_MAX_DEFAULT, AcceptObserver

DOOR: Final = "http"
"""What this door is called where doors are told apart."""

WRITE_BYTES: Final = 65_536
"""An answer is written in pieces of this size, so that a slow client that does read is not cut off."""

HANGING_UP_MS: Final = 1_000
"""How long a request that was read whole may still take once its client sends no more: it may have closed only its
sending side, and be waiting for the answer."""

_MS_PER_S: Final = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class HttpLimits:
    """The bounds of the HTTP door; times in milliseconds.

    Attributes:
        connections_max: How many connections may be open at once.
        handshake_ms: The time for a TLS handshake.
        headers_ms: From the first byte of a request (of a connection: from its start) to the end of its headers.
        idle_ms: How long a connection may wait between two requests.
        body_ms: From the end of the headers to the end of the body.
        write_ms: The time for a client to take ``WRITE_BYTES`` of an answer.
        linger_ms: How long a refused request is read on, so that closing does not destroy the answer.
        drain_ms: How long requests in flight may go on once the door drains; then they are cut off.
        header_bytes_max: The request line and headers, bytes.
        header_fields_max: The number of header fields.
        requests_max: How many requests one connection may bring; the last answer says ``connection: close``.
    """

    connections_max: int = CONNECTIONS_MAX_DEFAULT
    handshake_ms: int = 10_000
    headers_ms: int = 10_000
    idle_ms: int = 75_000
    body_ms: int = 30_000
    write_ms: int = 10_000
    linger_ms: int = 2_000
    drain_ms: int = 10_000
    header_bytes_max: int = 16_384
    header_fields_max: int = 100
    requests_max: int = 100_000


class HttpObserver(AcceptObserver):
    """What happens at the HTTP door beyond accepting; every method is empty."""

    def request_refused(self, status: int) -> None:
        """The guard itself answered a request, with ``status``, before the app was reached."""

    def deadline_passed(self, phase: Phase) -> None:
        """A client was let go because ``phase`` took too long; ``ANSWER`` means that it did not read its answer."""

    def app_failed(self, error: BaseException) -> None:
        """The app raised; the request got a 500, or a cut answer."""


class DrainContext(WorkerContext):
    """hypercorn's worker context; ``terminated`` is what makes its protocol close after the answer in hand."""

    class _Terminated(EventWrapper):
        def set_now(self) -> None:
            self._event.set()

    def __init__(self) -> None:
        super().__init__(max_requests=None)
        self._terminated = self._Terminated()
        self.terminated = self._terminated

    def terminate_now(self) -> None:
        self._terminated.set_now()


@dataclasses.dataclass(slots=True)
class Shared:
    """What all connections of a door have in common.

    Attributes:
        backlog: What waits for clients that do not read their answers.
        closes_at: When draining ends, on trio's clock.
    """

    app: AppWrapper
    config: Config
    limits: HttpLimits
    observer: HttpObserver
    backlog: Backlog = dataclasses.field(default_factory=Backlog)
    context: DrainContext = dataclasses.field(default_factory=DrainContext)
    state: LifespanState = dataclasses.field(default_factory=dict)
    closes_at: float = math.inf

    @property
    def draining(self) -> bool:
        return self.context.terminated.is_set()

    def begin_drain(self) -> None:
        self.context.terminate_now()
        self.closes_at = trio.current_time() + self.limits.drain_ms / _MS_PER_S
