"""A destination on real sockets that counts what it executes, and that can be told to fail in between."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Hook = Callable[[str], None]
"""Called with an operation id."""


class Destination:
    """Executes what it is sent, once for each operation id where it ``recognises`` them, and else every time.

    Attributes:
        requests: How many requests came for each operation.
        executions: How many of them had an effect.
        order: The bodies, in the order in which they were executed.
        executed: Called once a request has had its effect, before it is answered.
        behave: Says for a body how to answer it: ``ok``, ``busy`` (503, and nothing done), ``refuse`` (422), ``soft``
            (200 that says no), ``hang`` (done, and no answer in time), ``cut`` (done, and half an answer), ``broken``
            (done, and a 500).
        known: Whether its status page tells of what it has executed.
    """

    def __init__(self, *, recognises: bool, known: bool = True, behave: Callable[[str], str] = lambda _: "ok") -> None:
        self.requests: Counter[str] = Counter()
        self.executions: Counter[str] = Counter()
        self.order: list[str] = []
        self.executed: Hook = lambda _: None
        self.behave = behave
        self.known = known
        self._recognises = recognises
        self._lock = threading.Lock()
        self._answers: dict[str, bytes] = {}
        destination = self

        class Handler(_Handler):
            told = destination

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Destination:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def execute(self, operation: str, body: str) -> bytes:
        """The answer to a request; the effect comes with it."""
        with self._lock:
            self.requests[operation] += 1
            if not (self._recognises and operation in self._answers):
                self.executions[operation] += 1
                self.order.append(body)
                number = sum(self.executions.values())
                self._answers[operation] = json.dumps({"success": True, "number": number}).encode()
            return self._answers[operation]

    def status(self, operation: str) -> bytes | None:
        """What the status page has of an operation."""
        with self._lock:
            return self._answers.get(operation) if self.known else None

    def note(self, operation: str) -> None:
        """A request that had no effect came."""
        with self._lock:
            self.requests[operation] += 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    told: Destination

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        operation = self.headers["Idempotency-Key"]
        behaviour = self.told.behave(body)
        if behaviour in ("busy", "refuse", "soft"):
            self.told.note(operation)
            status, text = {"busy": (503, b"later"), "refuse": (422, b"no"), "soft": (200, b'{"success": false}')}[
                behaviour
            ]
            self._answer(status, text)
            return
        answer = self.told.execute(operation, body)
        self.told.executed(operation)
        if behaviour == "hang":
            time.sleep(2)
        elif behaviour == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            self.close_connection = True
        else:
            self._answer(500 if behaviour == "broken" else 200, answer)

    def do_GET(self) -> None:
        found = self.told.status(self.path.rsplit("/", 1)[1])
        self._answer(404 if found is None else 200, b"{}" if found is None else found)

    def _answer(self, status: int, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True
