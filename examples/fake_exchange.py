"""An exchange to try the examples on. It fills what it is sent and forgives nothing; the symbol says how it behaves.

python examples/fake_exchange.py 127.0.0.1:9100

=========  ==================================================================================
symbol     what becomes of an order
=========  ==================================================================================
REFUSED    400, not filled
SOFT       200 with ``"success": false``, not filled
DOWN       503, not filled, which its caller cannot know
BROKEN     filled, then 500
SLOW       filled, answered half a second later
HANG       filled, answered after half a minute
CUT        filled, then the connection is cut
any other  filled, 200
=========  ==================================================================================

``GET /fills`` counts the fills of each symbol, ``GET /orders/ID`` is 200 where the client order id ``ID`` was filled.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

ADDRESS: Final = "127.0.0.1:9100"
DELAYS_S: Final = {"SLOW": 0.5, "HANG": 30.0}
STATUSES: Final = {"REFUSED": 400, "DOWN": 503, "BROKEN": 500}
NOT_FILLED: Final = frozenset({"REFUSED", "SOFT", "DOWN"})

_lock = threading.Lock()
_fills: Counter[str] = Counter()
_filled: set[str] = set()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    def do_POST(self) -> None:
        """Place an order."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        symbol = order["symbol"]
        filled = symbol not in NOT_FILLED
        if filled:
            with _lock:
                _fills[symbol] += 1
                _filled.add(order["client_order_id"])
        if symbol == "CUT":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        time.sleep(DELAYS_S.get(symbol, 0.0))
        self._answer(STATUSES.get(symbol, 200), {"success": filled, "order_id": order["client_order_id"]})

    def do_GET(self) -> None:
        """What was filled."""
        with _lock:
            if self.path == "/fills":
                self._answer(200, dict(_fills))
            else:
                found = self.path.removeprefix("/orders/") in _filled
                self._answer(200 if found else 404, {"success": found})

    def _answer(self, status: int, members: object) -> None:
        body = json.dumps(members).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - The name is the base class's.
        """Its callers say what matters."""


class Exchange(ThreadingHTTPServer):
    """The exchange, at an address."""

    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: object, client_address: object) -> None:
        """Callers that leave, or are cut off on purpose, are no news."""


def serve(address: str) -> None:
    """Fill orders for ever."""
    host, _, port = address.rpartition(":")
    with Exchange((host, int(port)), Handler) as exchange:
        exchange.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1] if len(sys.argv) > 1 else ADDRESS)
