"""A fake exchange over HTTP that fills whatever it is sent and counts it: it forgives nothing.

A real exchange might recognise an order by its client order id; this one fills every order, so that a signal placed
twice is seen to be.
"""

from __future__ import annotations

import enum
import http.client
import json
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

SLOW_S: Final = 0.15
CALL_S: Final = 10.0
"""How long a caller of the exchange waits for its answer."""


class Mode(enum.Enum):
    """How the exchange behaves."""

    FAST = enum.auto()
    SLOW = enum.auto()
    FAILING = enum.auto()
    """503, and nothing is filled."""
    BROKEN = enum.auto()
    """Fills, then answers 500."""
    SOFT = enum.auto()
    """Answers 200 with ``success: false``, and nothing is filled."""
    CUT = enum.auto()
    """Fills, then cuts the connection."""
    DEAD = enum.auto()
    """Refuses connections."""


class Result(enum.Enum):
    """What a caller of the exchange knows afterwards."""

    FILLED = enum.auto()
    REJECTED = enum.auto()
    """It surely did not happen."""
    UNKNOWN = enum.auto()


class _Http(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that are cut on purpose are no news."""


class Exchange:
    """The exchange, on a port of its own; ``fills`` counts by signal."""

    def __init__(self, mode: Mode = Mode.FAST) -> None:
        self.mode = mode
        self.fills: Counter[str] = Counter()
        self._filled: set[str] = set()
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        # Bound and never listening: the kernel refuses every connection, and nobody else gets the port.
        self._refusing = socket.socket()
        self._refusing.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Exchange:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._refusing.close()

    # ----------------------------------------------------------------------------------------------- for its callers

    def place(self, signal: str, order_id: str) -> Result:
        """Send an order for a signal, as a client of the exchange does it."""
        port = (self._refusing.getsockname() if self.mode is Mode.DEAD else self._http.server_address)[1]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_S)
        try:
            connection.connect()
        except OSError:
            return Result.REJECTED
        try:
            connection.request("POST", "/orders", json.dumps({"signal": signal, "client_order_id": order_id}))
            response = connection.getresponse()
            body = json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return Result.UNKNOWN
        finally:
            connection.close()
        if response.status != 200:
            return Result.UNKNOWN
        return Result.FILLED if body["success"] else Result.REJECTED

    def was_filled(self, order_id: str) -> bool:
        """What the exchange says of a client order id: how a reconciler finds out."""
        with self._lock:
            return order_id in self._filled

    # ------------------------------------------------------------------------------------------------------- for itself

    def fill(self, signal: str, order_id: str) -> None:
        with self._lock:
            self.fills[signal] += 1
            self._filled.add(order_id)

    @property
    def most_fills(self) -> int:
        """The number of fills of the signal that has most."""
        with self._lock:
            return max(self.fills.values(), default=0)


def _handler(exchange: Exchange) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            mode = exchange.mode
            if mode is Mode.SLOW:
                time.sleep(SLOW_S)
            if mode in (Mode.FAST, Mode.SLOW, Mode.BROKEN, Mode.CUT):
                exchange.fill(order["signal"], order["client_order_id"])
            if mode is Mode.CUT:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status = {Mode.FAILING: 503, Mode.BROKEN: 500}.get(mode, 200)
            self._answer(status, {"success": mode is not Mode.SOFT and status == 200})

        def _answer(self, status: int, members: dict[str, Any]) -> None:
            body = json.dumps(members).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - The name is the base class's.
            """The test says what matters."""

    return Handler
