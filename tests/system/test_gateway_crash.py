"""The proxy under SIGKILL: whatever dies when, no order reaches the upstream twice."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.system.process import Server, assert_clean
from tests.system.programs import free_port
from tests.system.upstream import OK, Upstream

CONFIG: Final = """
[server]
shards = 2
[namespaces.orders]
on_lease_expiry = "hold"
lease_ms = 1000

[gateway]
bind = ["127.0.0.1:{port}"]
[[gateway.routes]]
prefix = "/orders"
upstream = "{url}"
namespace = "orders"
success = {{ pointer = "/success", equals = true }}
timeout_ms = 2000
wait_ms = 500
"""

ROUNDS: Final = int(os.environ.get("CRASH_ROUNDS", "0")) // 100 or 4
"""How often the server is killed; ``make crash`` does it more often."""
SENDERS: Final = 12
BEHAVIOURS: Final = ("ok", "ok", "ok", "slow", "500", "cut", "soft", "429")
GIVE_UP_S: Final = 30.0


class Sender:
    """Sends one order until it is told what became of it, on as many connections as that takes."""

    def __init__(self, port: int, key: str, behaviour: str, stop: threading.Event) -> None:
        self.key = key
        self.behaviour = behaviour
        self._port = port
        self._stop = stop

    def run(self) -> tuple[int, bytes]:
        """The last answer: its status and body; 0 where none came."""
        answer = 0, b""
        until = time.monotonic() + GIVE_UP_S
        while time.monotonic() < until and not self._stop.is_set():
            answer = self._post()
            if answer[0] in (200, 429) or (answer[0] == 409 and b'"in_doubt"' in answer[1]):
                break
            time.sleep(0.02)
        return answer

    def _post(self) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("POST", f"/orders/{self.behaviour}", b"{}", {"Idempotency-Key": self.key})
            answer = connection.getresponse()
            return answer.status, answer.read()
        return 0, b""


def test_no_order_reaches_the_upstream_twice(home: Path, seed: int) -> None:
    rng, port, stop = random.Random(seed), free_port(), threading.Event()
    with Upstream(slow_s=0.2) as upstream, ThreadPoolExecutor(2 * SENDERS) as pool:
        server = Server(home, CONFIG.format(port=port, url=upstream.url)).start()
        senders, futures = [], []
        for _ in range(ROUNDS):
            for _ in range(SENDERS):
                # Two senders for each order, as if its sender had sent it twice.
                sender = Sender(port, f"{rng.getrandbits(64):x}", rng.choice(BEHAVIOURS), stop)
                senders.append(sender)
                futures += [pool.submit(sender.run), pool.submit(sender.run)]
            time.sleep(rng.uniform(0.02, 0.5))
            server.restart()
        told = [future.result(GIVE_UP_S + 10) for future in futures if not stop.is_set()]
        stop.set()
        server.terminate()
    calls = Counter(request.header("Idempotency-Key")[0] for request in upstream.requests)
    answers = {sender.key: (told[2 * at], told[2 * at + 1]) for at, sender in enumerate(senders)}
    for sender in senders:
        # What says that nothing was done frees the key, and is sent again.
        again = sender.behaviour in ("soft", "429")
        assert again or calls[sender.key] <= 1, f"{sender.behaviour}: {calls[sender.key]} calls, seed {seed}"
        for status, body in answers[sender.key]:
            if status == 200 and sender.behaviour in ("ok", "slow"):
                assert body == OK
                assert calls[sender.key] == 1, "it is said to be done, and the upstream knows nothing of it"
    print(f"{ROUNDS} kills, {len(senders)} orders, each sent by two: {sum(calls.values())} calls of the upstream")
    assert any(status == 200 for pair in answers.values() for status, _ in pair)
    assert_clean(server.data_dir)


def test_the_port_of_a_killed_server_is_free_at_once(home: Path) -> None:
    """What the test above relies on."""
    port = free_port()
    with Upstream() as upstream, Server(home, CONFIG.format(port=port, url=upstream.url)) as server:
        with socket.create_connection(("127.0.0.1", port)):
            server.restart()
        assert server.addresses("gateway") == [f"127.0.0.1:{port}"]
