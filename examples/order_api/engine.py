"""The matching engine: executes the orders that it is sent, and counts how often it executed each. It forgives nothing.

python -m examples.order_api.engine --port 9000 --journal executions.jsonl [--recognises] [--mode fill]

==========  ================================================================================
mode        what becomes of an order
==========  ================================================================================
fill        executed, 200 with ``"success": true``
hang        executed, and not answered before the mode changes or half a minute is over
die         executed, and the engine is gone (SIGKILL)
refuse      200 with ``"success": false``, not executed
busy        503, not executed
garbage     executed, 200 with something that is no JSON
chaos       one of all but ``die``, by chance
==========  ================================================================================

``POST /orders`` with an ``Idempotency-Key`` executes, ``GET /orders/KEY`` says what became of it (404: never heard of),
``GET /executions`` lists all executions in order, ``POST /switch`` changes ``mode``. With ``--recognises`` an order
that was executed under the same key is answered as before and not executed again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal, get_args

Mode = Literal["fill", "hang", "die", "refuse", "busy", "garbage", "chaos"]

HANG_S: Final = 30.0
CHANCES: Final[dict[Mode, int]] = {"fill": 80, "hang": 5, "refuse": 5, "busy": 5, "garbage": 5}


class Engine:
    """What it executed. The journal outlives the process: an execution is a fact, whoever dies."""

    def __init__(self, journal: Path, *, recognises: bool, mode: Mode) -> None:
        self.mode: Mode = mode
        self._recognises = recognises
        self._changed = threading.Condition()
        self._executions: list[dict[str, Any]] = []
        self._answers: dict[str, bytes] = {}
        for line in journal.read_text().splitlines() if journal.exists() else []:
            self._note(json.loads(line))
        self._journal = journal.open("a")

    def switch(self, mode: Mode) -> None:
        """Behave otherwise from now on; whoever hangs is let go."""
        with self._changed:
            self.mode = mode
            self._changed.notify_all()

    def take(self, operation_id: str, order: dict[str, Any]) -> tuple[int, bytes]:
        """What an order is answered: status and body."""
        mode = began_in = self.mode
        if mode == "chaos":
            mode = random.choices(list(CHANCES), list(CHANCES.values()))[0]
        with self._changed:
            known = self.find(operation_id) if self._recognises else None
            if mode == "busy":
                return 503, b'{"success": false, "reason": "busy"}'
            if known is None and mode == "refuse":
                return 200, b'{"success": false, "reason": "no margin"}'
            answer = known or self._execute(operation_id, order)
            if mode == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if mode == "hang":
                self._changed.wait_for(lambda: self.mode != began_in, HANG_S)
        return 200, b"it is done" if mode == "garbage" else answer

    def find(self, operation_id: str) -> bytes | None:
        """The answer to an order that was executed."""
        return self._answers.get(operation_id)

    def executions(self) -> bytes:
        """All, in order."""
        with self._changed:
            return json.dumps(self._executions).encode()

    def _execute(self, operation_id: str, order: dict[str, Any]) -> bytes:
        done = {"operation_id": operation_id, "number": len(self._executions) + 1, **order}
        self._journal.write(json.dumps(done) + "\n")
        self._journal.flush()
        return self._note(done)

    def _note(self, done: dict[str, Any]) -> bytes:
        self._executions.append(done)
        answer = json.dumps({"success": True, "execution": done["number"], "quantity": done.get("quantity")}).encode()
        self._answers.setdefault(done["operation_id"], answer)
        return answer


def handler_for(engine: Engine) -> type[BaseHTTPRequestHandler]:
    """One connection to the engine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An answer leaves in one piece.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/switch":
                engine.switch(told["mode"])
                self._answer(200, b"{}")
            else:
                self._answer(*engine.take(self.headers["Idempotency-Key"].strip('"'), told))

        def do_GET(self) -> None:
            if self.path == "/executions":
                self._answer(200, engine.executions())
                return
            found = engine.find(self.path.rpartition("/")[2])
            self._answer(404 if found is None else 200, found or b"{}")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - The name is the base class's.
            """Its journal says all."""

    return Handler


class _Http(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that are cut on purpose are no news."""


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--recognises", action="store_true")
    parser.add_argument("--mode", choices=get_args(Mode), default="fill")
    told = parser.parse_args()
    engine = Engine(told.journal, recognises=told.recognises, mode=told.mode)
    _Http(("127.0.0.1", told.port), handler_for(engine)).serve_forever()


if __name__ == "__main__":
    main()
