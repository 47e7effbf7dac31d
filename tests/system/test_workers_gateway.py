"""The reverse proxy of a server with several processes: any of them may have the request, another one its key."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.system.process import assert_calm, assert_clean, eventually
from tests.system.programs import free_port
from tests.system.test_gateway_proxy import CONFIG, LEASE_MS, Proxied
from tests.system.upstream import OK, Upstream
from tests.system.worker_server import Workers

KEYS: Final = [f"busy-{number}" for number in range(12)]
"""Enough that every worker has some of its own and some of the others'."""
APART_S: Final = 0.08
ENDS_S: Final = 10
"""What a stop takes at most; a third of the time that it may take."""


def configured(home: Path, upstream: Upstream) -> Workers:
    text = CONFIG.format(home=home, url=upstream.url, closed=free_port(), lease_ms=LEASE_MS)
    return Workers(home, 3, text)


def test_many_at_once_are_one_call_for_each_key(home: Path) -> None:
    with Upstream() as upstream, configured(home, upstream) as server:
        proxied = Proxied(server, upstream)
        with ThreadPoolExecutor(60) as pool:
            told = list(pool.map(lambda n: proxied.call("/patient/slow", KEYS[n % len(KEYS)]), range(60)))
        assert {(one.status, one.body) for one in told} == {(200, OK)}
        assert sum(not one.replayed for one in told) == len(KEYS)
        assert upstream.counts()["/patient/slow"] == len(KEYS)
        assert_calm(server)


def test_sigterm_brings_what_is_under_way_to_its_end_whoever_owns_its_key(home: Path) -> None:
    with Upstream(slow_s=1.5) as upstream, configured(home, upstream) as server:
        proxied = Proxied(server, upstream)
        with ThreadPoolExecutor(len(KEYS)) as pool:
            busy = []
            for key in KEYS:
                # One after the other, so that a worker may be done long before another needs its shards.
                busy.append(pool.submit(proxied.call, "/patient/slow", key))
                time.sleep(APART_S)
            eventually(lambda: len(upstream.requests) == len(KEYS))
            server.signal(signal.SIGTERM)
            assert [one.result().body for one in busy] == [OK] * len(KEYS)
            assert server.wait() == 0
        assert_calm(server)
        server.start()
        again = [proxied.call("/patient/slow", key) for key in KEYS]
        assert [(one.body, one.replayed) for one in again] == [(OK, True)] * len(KEYS)
        assert len(upstream.requests) == len(KEYS)
        assert server.terminate() == 0
    assert_clean(server.data_dir)


def test_a_worker_that_dies_while_the_server_stops_does_not_hold_it_up(home: Path) -> None:
    with Upstream(slow_s=1.5) as upstream, configured(home, upstream) as server:
        proxied = Proxied(server, upstream)
        with ThreadPoolExecutor(len(KEYS)) as pool:
            for key in KEYS:
                pool.submit(proxied.call, "/patient/slow", key)
            eventually(lambda: len(upstream.requests) == len(KEYS))
            server.signal(signal.SIGTERM)
            time.sleep(0.5)
            begun = time.monotonic()
            server.kill_worker(1)
            # What the dead one had in hand is lost, and that is said.
            assert server.wait() == 1
            assert time.monotonic() - begun < ENDS_S
    assert_clean(server.data_dir)
