"""What stands behind a gateway in a test: an application that remembers what reached it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True)
class Seen:
    """A request that reached the application; names of headers in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Application:
    """Answers 201 and its own number of the request; ``fail_next`` of them it drops without an answer."""

    seen: list[Seen] = field(default_factory=list)
    fail_next: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._server = _Server(self)

    def __enter__(self) -> Application:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def take(self, seen: Seen) -> int | None:
        """Remember a request; its number, or None where it is to fail."""
        with self._lock:
            self.seen.append(seen)
            if self.fail_next:
                self.fail_next -= 1
                return None
            return len(self.seen)

    def with_key(self, key: str) -> list[Seen]:
        """What reached it with this key, or delivery."""
        names = ("idempotency-key", "x-github-delivery")
        return [seen for seen in self.seen if any(seen.headers.get(name) == key for name in names)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, application: Application) -> None:
        self.application = application
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A gateway that is stopped drops its connections: nobody has to hear of it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, self.path, headers, self._body())
        number = self.server.application.take(seen)
        if number is None:
            self.close_connection = True
            return
        body = json.dumps({"order": number}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") is None:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = bytearray()
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's signature)
        """Nothing: the test knows what it sent."""
