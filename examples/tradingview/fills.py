"""How often is an order filled when its sender is unsure? Run by ``make demo``.

A sender that behaves as TradingView does (waits three seconds for an answer, and sends the same message again, five
seconds apart and three times at most, where it got a 5xx or none) sends orders to an exchange that misbehaves: once
straight, and once through idemactor's reverse proxy, a real server process on a data directory of its own. The table
says how often each order was filled. The exit code is 1 where one was filled twice behind idemactor, or not at all.

python examples/tradingview/fills.py
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

ANSWER_S: Final = 3.0
"""How long the sender waits for an answer."""
RESEND_S: Final = 5.0
"""How long it waits before it sends again."""
RESENDS_MAX: Final = 3
MINUTE_S: Final = 60
BOUNDARY_S: Final = 3.0
"""How long before the end of a minute, by the server's clock, the orders are sent: their resends come after it."""
START_S: Final = 5.0
"""How long the server may take to start, or the demonstration waits for the next minute."""

CONFIG: Final = """
[server]
data_dir = "data"
[http]
bind = ["127.0.0.1:0"]
[rpc]
bind = []

# An order that may have been placed is never placed again on a guess.
[namespaces.trade]
on_lease_expiry = "hold"

[gateway]
bind = ["127.0.0.1:0"]

[[gateway.routes]]
prefix = "/orders"
upstream = "http://{exchange}"
namespace = "trade"
source = "tradingview"
timeout_ms = 10000
success = {{ pointer = "/success", equals = true }}
# This exchange says 503 before it looks at an order.
not_executed = [429, 503]
"""

SHIFTED: Final = """
import os, time
ahead_ns, wall_ns = int(os.environ["DEMO_AHEAD_NS"]), time.time_ns
time.time_ns = lambda: wall_ns() + ahead_ns
from idemactor.cli.main import main
main(prog_name="idemactor")
"""
"""The server, whose clock is set so that nobody has to wait for the end of a minute."""


# --------------------------------------------------------------------------------------------------------- the exchange


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that goes wrong.

    Attributes:
        name: What the order says, and what tells the exchange how to behave.
        text: The same for people.
        copies: How many senders send it at once.
        fills: How often it should be filled.
    """

    name: str
    text: str
    copies: int = 1
    fills: int = 1


CASES: Final = (
    Case("FINE", "nothing goes wrong"),
    Case("BROKEN", "filled, then 500: resent"),
    Case("SLOW", "filled, but the answer takes 4 s: resent"),
    Case("CUT", "filled, then the connection is cut: resent"),
    Case("TWICE", "sent by two servers at once", copies=2),
    Case("BUSY", "503 at first, nothing filled: resent"),
    Case("REFUSED", "refused with 400", fills=0),
    Case("SOFT", 'refused with 200 and "success": false', fills=0),
)


class Exchange(ThreadingHTTPServer):
    """Fills whatever it is sent, and forgives nothing."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Orders)
        self.fills: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.server_port}"

    def take(self, case: str) -> tuple[int, bool]:
        """What becomes of an order: the status, and whether it is filled."""
        with self.lock:
            self.seen[case] += 1
            status = {"BROKEN": 500, "REFUSED": 400}.get(case, 200)
            if case == "BUSY" and self.seen[case] == 1:
                status = 503
            filled = status != 503 and case not in ("REFUSED", "SOFT")
            self.fills[case] += filled
        return status, filled

    def handle_error(self, request: object, client_address: object) -> None:
        """Senders that left are no news."""


class Orders(BaseHTTPRequestHandler):
    """One connection to the exchange."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """An order."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Exchange)
        status, filled = self.server.take(order["case"])
        if order["case"] == "CUT":
            self.close_connection = True
            return
        # Long enough for the second of two to come meanwhile; or too long for the sender.
        time.sleep(ANSWER_S + 1 if order["case"] == "SLOW" else 0.2)
        body = json.dumps({"success": filled}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - The name is the base class's.
        """The table says what matters."""


# ----------------------------------------------------------------------------------------------------------- the sender


def alert(case: Case) -> bytes:
    """The message of an alert: no id, and nothing that changes when it is sent again."""
    return json.dumps({"strategy": "ema-cross", "case": case.name, "symbol": "ETHUSDT", "qty": 0.25}).encode()


def send(address: str, case: Case) -> list[int]:
    """Send an alert as TradingView does; the statuses that it got, 0 for none."""
    statuses: list[int] = []
    for attempt in range(1 + RESENDS_MAX):
        if attempt:
            time.sleep(RESEND_S)
        statuses.append(_post(address, alert(case)))
        if 0 < statuses[-1] < 500:
            break
    return statuses


def _post(address: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
    try:
        connection.request("POST", "/orders", body, {"Content-Type": "application/json; charset=utf-8"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def send_all(address: str) -> dict[str, list[list[int]]]:
    """Every case at once; what each of its senders was answered."""
    with ThreadPoolExecutor(sum(case.copies for case in CASES)) as pool:
        sent = {case.name: [pool.submit(send, address, case) for _ in range(case.copies)] for case in CASES}
        return {name: [future.result() for future in futures] for name, futures in sent.items()}


# ----------------------------------------------------------------------------------------------------------- the server


@contextlib.contextmanager
def idemactor(exchange: str) -> Iterator[str]:
    """A real server in front of ``exchange``; the address of its proxy."""
    with tempfile.TemporaryDirectory(prefix="idemactor-demo-") as home:
        config = Path(home, "config.toml")
        config.write_text(CONFIG.format(exchange=exchange))
        root = Path(__file__).resolve().parents[2]
        ahead_s = _ahead_s()
        environment = {**os.environ, "PYTHONPATH": str(root), "DEMO_AHEAD_NS": str(int(ahead_s * 1e9))}
        command = [sys.executable, "-c", SHIFTED, "serve", "--config", str(config)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=home, env=environment
        ) as server:
            try:
                assert server.stdout is not None
                ready = dict(word.split("=", 1) for word in server.stdout.readline().split() if "=" in word)
                if "gateway" not in ready:
                    sys.exit("the server did not start")
                _wait_for_the_boundary(ahead_s)
                yield ready["gateway"]
            finally:
                server.terminate()
                # Ctrl-C, else, would take its folder away while it still writes there.
                server.wait()


def _ahead_s() -> float:
    """How far the server's clock has to be ahead for a minute to end soon after it is up."""
    return (MINUTE_S - START_S - BOUNDARY_S - time.time()) % MINUTE_S


def _wait_for_the_boundary(ahead_s: float) -> None:
    """Until ``BOUNDARY_S`` before the end of a minute of the server's."""
    time.sleep((MINUTE_S - BOUNDARY_S - time.time() - ahead_s) % MINUTE_S)


def main() -> int:
    """Both runs, and the table."""
    print(f"Sending {len(CASES)} orders, with and without idemactor; each may take half a minute ...", flush=True)
    straight, behind = Exchange(), Exchange()
    for exchange in (straight, behind):
        threading.Thread(target=exchange.serve_forever, daemon=True).start()
    pool = ThreadPoolExecutor(2)
    with idemactor(behind.address) as gateway:
        without, with_it = pool.submit(send_all, straight.address), pool.submit(send_all, gateway)
        print(table(straight, behind, without.result(), with_it.result()))
    wrong = list(failures(behind.fills))
    if wrong:
        print("\n".join(wrong))
    return 1 if wrong else 0


def failures(fills: Mapping[str, int]) -> Iterator[str]:
    """What went wrong behind idemactor, for people."""
    for case in CASES:
        filled = fills.get(case.name, 0)
        if filled != case.fills:
            yield f"behind idemactor, {filled} fills and not {case.fills}: {case.text}"


def table(
    straight: Exchange, behind: Exchange, without: dict[str, list[list[int]]], with_it: dict[str, list[list[int]]]
) -> str:
    """What became of every order: fills, and what its senders were answered."""
    rows: list[tuple[str, ...]] = [
        ("what happens to the order", "wanted", "fills without", "fills with", "answers with")
    ]
    for case in CASES:
        answers = " | ".join(" ".join(str(status or "none") for status in one) for one in with_it[case.name])
        fills = [case.fills, straight.fills[case.name], behind.fills[case.name]]
        rows.append((case.text, *map(str, fills), answers))
    total = [sum(case.fills for case in CASES), straight.fills.total(), behind.fills.total()]
    rows.append(("all", *map(str, total), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    sent = sum(len(one) for answers in without.values() for one in answers)
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(
        ["", *lines, "", f"(sent without idemactor: {sent} times; every resend after the end of a minute)"]
    )


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The handler of Ctrl-C: however this ends, the server ends with it.
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        # The senders' threads would go on for half a minute.
        os._exit(130)
