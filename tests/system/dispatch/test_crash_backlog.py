"""A backlog that grew while the destination was down, and is drained in order without flooding it once it is back."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.system.clients import Members
from tests.system.dispatch.destination import Destination
from tests.system.process import Server, assert_clean, eventually

ENTRIES: Final = 100_000 if "CRASH_ROUNDS" in os.environ else 600
"""``make crash`` takes the large one."""
AT_ONCE: Final = 200
CONCURRENCY: Final = 8
ACCOUNTS: Final = 20
DRAINED_S: Final = 60 + ENTRIES / 100

CONFIG: Final = """
[server]
shards = 4
[namespaces.orders]
ttl_ms = 86400000
[namespaces.orders.dispatch]
url = "{url}/orders"
timeout_ms = 2000
concurrency = {concurrency}
downstream_dedups = true
success = {{ pointer = "/success", equals = true }}
retry = {{ first_ms = 50, factor = 2.0, longest_ms = 500, horizon_ms = 86400000 }}
"""


class Gauge:
    """How many requests were under way at once, at most."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, _: str) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.001)
        with self._lock:
            self._now -= 1


def dispatch_all(server: Server) -> None:
    """Every account's orders in turn; within one its numbers ascend from call to call."""
    with server.rpc_client(timeout_s=60) as client:
        for start in range(0, ENTRIES, AT_ONCE):
            numbers = range(start, min(ENTRIES, start + AT_ONCE))
            # Of one account at most one is under way: otherwise nobody could say which came first.
            for first in range(0, len(numbers), ACCOUNTS):
                calls = [("dispatch", call_of(number)) for number in numbers[first : first + ACCOUNTS]]
                for told in client.pipeline(calls):
                    assert isinstance(told, dict), told
                    assert told["result"] == "accepted"


def call_of(number: int) -> Members:
    body = f"a{number % ACCOUNTS}-{number}"
    return {"namespace": "orders", "key": body, "intent": {"body": body.encode()}, "order_key": f"a{number % ACCOUNTS}"}


def test_a_backlog_is_drained_in_order_without_flooding_anybody(tmp_path: Path) -> None:
    gauge = Gauge()
    with Destination(recognises=True, behave=lambda _: "busy" if closed.is_set() else "ok") as destination:
        closed = threading.Event()
        closed.set()
        destination.executed = gauge
        config = CONFIG.format(url=destination.url, concurrency=CONCURRENCY)
        with Server(tmp_path, config).start() as server:
            dispatch_all(server)
            assert not destination.executions
            server.restart()
            closed.clear()
            eventually(lambda: len(destination.executions) == ENTRIES, DRAINED_S, 0.2)
        assert gauge.most <= CONCURRENCY
        assert set(destination.executions.values()) == {1}
        seen: dict[str, list[int]] = defaultdict(list)
        for body in destination.order:
            account, number = body.split("-")
            seen[account].append(int(number))
        assert all(numbers == sorted(numbers) for numbers in seen.values())
        print(f"{ENTRIES} entries drained in order, at most {gauge.most} requests at once")
    assert_clean(server.data_dir)
