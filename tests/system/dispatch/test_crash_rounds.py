"""The relay under SIGKILL at random, and destinations that fail in every way: what was executed, how often, in which
order."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

from tests.system.clients import Lost
from tests.system.dispatch.destination import Destination
from tests.system.process import Server, assert_clean, eventually

ROUNDS: Final = int(os.environ.get("CRASH_ROUNDS", "0")) * 2 // 5 or 2
"""How often the server is killed: 200 times by ``make crash``."""
ACCOUNTS: Final = 3
BEHAVIOURS: Final = ("ok", "ok", "ok", "ok", "busy", "hang", "cut", "broken")
SETTLED_S: Final = 90.0
SETTLED_EACH_S: Final = 0.1

CONFIG: Final = """
[server]
shards = 3
workers = {workers}
[namespaces.orders]
ttl_ms = 86400000
[namespaces.orders.dispatch]
url = "{url}/orders"
timeout_ms = 500
concurrency = 4
downstream_dedups = {dedups}
{status}
success = {{ pointer = "/success", equals = true }}
retry = {{ first_ms = 20, factor = 2.0, longest_ms = 200, horizon_ms = 86400000 }}
"""


class Moody:
    """How the destination treats a request: badly at first, and well in the end."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, body: str) -> str:
        with self._lock:
            if body not in self._left:
                self._left[body] = [self._rng.choice(BEHAVIOURS) for _ in range(self._rng.randint(0, 2))]
            return self._left[body].pop() if self._left[body] else "ok"


class Account:
    """One account's orders, each sent once the one before was accepted; every other one keeps to an order."""

    def __init__(self, server: Server, number: int, stop: threading.Event) -> None:
        self.accepted: list[tuple[str, str]] = []
        self._server = server
        self._number = number
        self._stop = stop

    def run(self) -> None:
        count = 0
        while not self._stop.is_set():
            body = f"a{self._number}-{count}"
            found = self._accepted(body)
            if found is not None:
                self.accepted.append((body, found))
                count += 1

    def _accepted(self, body: str) -> str | None:
        call: dict[str, Any] = {"key": body, "intent": {"body": body}}
        if keeps_order(body):
            call["order_key"] = f"a{self._number}"
        while not self._stop.is_set():
            try:
                with self._server.http_client() as client:
                    answer = client.call("dispatch", "orders", **call)
            except (Lost, OSError, IndexError):
                time.sleep(0.05)
                continue
            if answer.status == 202:
                time.sleep(0.02)
                return str(answer.members["operation_id"])
            assert answer.status == 503, answer
        return None


def kill_at_random(home: Path, destination: Destination, rng: random.Random, *, dedups: bool, workers: int) -> Any:
    status = "" if dedups else f'status_url = "{destination.url}/orders/{{operation_id}}"'
    config = CONFIG.format(url=destination.url, dedups=str(dedups).lower(), status=status, workers=workers)
    server = Server(home, config).start()
    stop = threading.Event()
    accounts = [Account(server, number, stop) for number in range(ACCOUNTS)]
    threads = [threading.Thread(target=account.run) for account in accounts]
    for thread in threads:
        thread.start()
    try:
        for _ in range(ROUNDS):
            time.sleep(rng.uniform(0.2, 1.0))
            server.restart()
        time.sleep(0.5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return server, [each for account in accounts for each in account.accepted]


def states(server: Server, accepted: list[tuple[str, str]]) -> dict[str, str]:
    with server.http_client() as client:
        return {
            found: client.get(f"/v1/orders/operations/{found}").members["state"]  # One at a time: they are few.
            for _, found in accepted
        }


def all_settled(server: Server, accepted: list[tuple[str, str]]) -> None:
    left = list(accepted)

    def is_settled() -> bool:
        # Many rounds leave thousands of them: who succeeded is not asked about again.
        found = states(server, left[:500])
        assert set(found.values()) <= {"queued", "delivering", "succeeded"}, found
        left[:] = [one for one in left if found.get(one[1]) != "succeeded"]
        return not left

    eventually(is_settled, SETTLED_S + len(accepted) * SETTLED_EACH_S, 0.1)


def tell(accepted: list[tuple[str, str]], destination: Destination) -> None:
    executed = Counter(destination.executions[found] for _, found in accepted)
    print(f"{ROUNDS} kills, {len(accepted)} operations accepted: {executed[1]} executed once, {executed[0]} never")


def keeps_order(body: str) -> bool:
    """Every other one: behind one that stays in doubt nothing of its account is sent any more."""
    return int(body.rpartition("-")[2]) % 2 == 0


def assert_in_order(destination: Destination) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    for body in destination.order:
        account, number = body.split("-")
        if keeps_order(body):
            seen[account].append(int(number))
    for numbers in seen.values():
        assert numbers == sorted(numbers)


def test_a_destination_that_recognises_ids_executes_each_operation_exactly_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Destination(recognises=True, behave=Moody(rng)) as destination:
        server, accepted = kill_at_random(tmp_path, destination, rng, dedups=True, workers=1)
        with server:
            all_settled(server, accepted)
        assert len(accepted) >= ROUNDS
        for _, found in accepted:
            assert destination.executions[found] == 1
        assert_in_order(destination)
        tell(accepted, destination)
    assert_clean(server.data_dir)


def test_a_destination_that_does_not_never_executes_one_twice(tmp_path: Path, seed: int) -> None:
    """What is in doubt is asked about; the status page knows, so that all of it is settled in the end."""
    rng = random.Random(seed)
    with Destination(recognises=False, behave=Moody(rng)) as destination:
        server, accepted = kill_at_random(tmp_path, destination, rng, dedups=False, workers=1)
        with server:
            settled_s = SETTLED_S + len(accepted) * SETTLED_EACH_S
            eventually(lambda: _only_known(server, destination, accepted), settled_s, 0.5)
        assert max(destination.executions.values(), default=0) <= 1
        assert_in_order(destination)
        tell(accepted, destination)
    assert_clean(server.data_dir)


def _only_known(server: Server, destination: Destination, accepted: list[tuple[str, str]]) -> bool:
    """What the destination did is committed; in doubt is only what it never saw, and what stands behind that."""
    found = states(server, accepted)
    done = {operation for operation, count in destination.executions.items() if count}
    return all(found.get(operation, "succeeded") == "succeeded" for operation in done)


def test_with_workers_that_die_with_their_server(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Destination(recognises=True, behave=Moody(rng)) as destination:
        server, accepted = kill_at_random(tmp_path, destination, rng, dedups=True, workers=2)
        with server:
            all_settled(server, accepted)
        for _, found in accepted:
            assert destination.executions[found] == 1
        assert_in_order(destination)
        tell(accepted, destination)
