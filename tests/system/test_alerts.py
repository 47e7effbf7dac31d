"""Alerts about processes: IdemactorDown, a server that is gone; IdemactorWorkerDown, a worker that does not answer."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Final

import pytest

from tests.observability.alerts import ALERTS, BY_COUNTERS, Watcher
from tests.system.clients import HttpClient, Lost
from tests.system.process import Server
from tests.system.worker_server import Workers

EVERYTHING: Final = """
[namespaces.default]
[namespaces.orders]
on_unavailable = "open"
[namespaces.orders.dispatch]
url = "http://127.0.0.1:9/orders"
[sources.github]
verify = { secret_env = "SECRET" }
[gateway]
bind = ["127.0.0.1:0"]
[[gateway.routes]]
prefix = "/orders"
upstream = "http://127.0.0.1:9"
namespace = "orders"
auth = "open"
tenant = "default"
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_what_alerts_count_is_there_before_anything_happened(workers: int, home: Path) -> None:
    """Else its first count would be no increase."""
    # Of a histogram there is no such series to come: it has no labels.
    series = re.findall(r"idemactor_\w+_total", " ".join(ALERTS[alert]["expr"] for alert in BY_COUNTERS))
    with Workers(home, workers, EVERYTHING, extra={"SECRET": "s" * 32}) as server:
        text = metrics_of(server, server.http) or ""
        assert {name for name in series if not re.search(rf"^{name}(\{{.*\}})? 0\.0$", text, re.MULTILINE)} == set()
        shards = re.findall(r'^idemactor_shard_batch_failures_total\{.*shard="(\d+)".*\} 0\.0$', text, re.MULTILINE)
        assert sorted(shards) == [str(shard) for shard in range(6)], "each of its owner alone"
        assert text.count("\nidemactor_uptime_seconds") == workers
        assert server.terminate() == 0


def metrics_of(server: Server, address: str) -> str | None:
    try:
        with HttpClient(address, 10) as client:
            return client.get("/metrics").body.decode() if server.alive else None
    except (Lost, OSError):
        return None


def minutes(watcher: Watcher, server: Server, address: str, begin: int, end: int) -> None:
    """Scrape once for each minute of a stretch; a real one takes as long as a scrape does."""
    for minute in range(begin, end):
        watcher.scrape(minute * 60.0, metrics_of(server, address))


def test_a_server_that_is_gone(home: Path) -> None:
    watcher = Watcher()
    with Server(home) as server:
        address = server.http
        with server.http_client() as client:
            assert client.call("reserve", key="k").status == 201
        minutes(watcher, server, address, 0, 15)
        # A healthy one, with its real disk: nothing is wrong with it but what is wrong with this machine.
        assert {alert for alert in ALERTS if watcher.firing(alert)} <= {"IdemactorDiskFilling", "IdemactorDiskSlow"}
        server.kill()
        minutes(watcher, server, address, 15, 17)
        assert watcher.firing("IdemactorDown")
        with server.start():
            minutes(watcher, server, server.http, 17, 18)
            assert not watcher.firing("IdemactorDown")
            server.kill()


def test_a_worker_that_does_not_answer(home: Path) -> None:
    watcher = Watcher()
    with Workers(home, 2) as server:
        first = server.direct("http")[0]
        minutes(watcher, server, first, 0, 3)
        assert not watcher.firing("IdemactorWorkerDown")
        text = metrics_of(server, first)
        assert text is not None
        # Each of them tells of the disk, as it tells of itself.
        assert 'idemactor_disk_free_bytes{worker="1"}' in text
        assert 'idemactor_journal_bytes{worker="0"}' in text
        os.kill(server.pid_of(1), signal.SIGSTOP)
        minutes(watcher, server, first, 3, 5)
        [labels] = watcher.firing("IdemactorWorkerDown")
        assert ("worker", "1") in labels
        assert watcher.firing("IdemactorShardSilent")
        os.kill(server.pid_of(1), signal.SIGCONT)
        server.wait_whole()
        minutes(watcher, server, first, 5, 6)
        assert not watcher.firing("IdemactorWorkerDown")
        assert server.terminate() == 0
