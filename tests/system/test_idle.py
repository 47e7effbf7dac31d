"""Many connections that do nothing, come and go, or are half dead; and no descriptors left for more of them.

``IDLE_CONNECTIONS`` asks for more of them, as far as the limit on descriptors of this process goes.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.system.clients import RpcClient, connect, frame, raw
from tests.system.process import Server, assert_calm, eventually

WANTED: Final = int(os.environ.get("IDLE_CONNECTIONS", "1000"))
KEPT: Final = 200
"""Descriptors of this process for everything else."""
CHURN: Final = 2_000
LIVEZ: Final = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
GROWTH_KB_PER_CONNECTION_MAX: Final = 64


@contextlib.contextmanager
def many(addresses: list[str], count: int) -> Iterator[list[socket.socket]]:
    """Open connections, to one address after the other."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(addresses[number % len(addresses)], 30)) for number in range(count)]


def resident_kb(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def serves(server: Server) -> bool:
    with RpcClient(server.rpc) as rpc:
        return rpc.request("ping", {}) == {"result": "pong"} and raw(server.http, LIVEZ).startswith(b"HTTP/1.1 200")


def test_idle_connections_cost_little_and_hold_up_nobody(home: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Server(home) as server:
            count = min(WANTED, hard - KEPT)
            before, quiet = resident_kb(server.pid), descriptors(server.pid)
            with many([server.http, server.rpc], count) as idle:
                eventually(lambda: descriptors(server.pid) >= quiet + count, 60)
                # Some have begun to say something.
                for number, sock in enumerate(idle[:100]):
                    sock.sendall(frame(1, "ping", {})[:3] if number % 2 else b"POST /v1/default/res")
                assert serves(server)
                with RpcClient(server.rpc) as rpc:
                    started = time.perf_counter()
                    for number in range(50):
                        assert rpc.call("accept", key=f"k{number}")["result"] == "accepted"
                    assert time.perf_counter() - started < 5
                grown = (resident_kb(server.pid) - before) / count
                print(f"{count} idle connections, {grown:.1f} KB each")
                assert grown < GROWTH_KB_PER_CONNECTION_MAX
            eventually(lambda: descriptors(server.pid) <= quiet + 5, 30)
            assert_calm(server)
            assert server.terminate() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_that_come_and_go_leave_nothing(home: Path) -> None:
    with Server(home) as server:
        assert serves(server)
        quiet = descriptors(server.pid)
        for number in range(CHURN):
            with connect(server.rpc if number % 2 else server.http) as sock:
                if number % 3 == 0:
                    sock.sendall(frame(1, "ping", {}) if number % 2 else LIVEZ)
                if number % 5 == 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        eventually(lambda: descriptors(server.pid) <= quiet + 5, 30)
        assert serves(server)
        assert_calm(server)
        assert server.terminate() == 0


def test_half_open_sockets_are_let_go(home: Path) -> None:
    """The client has closed its side, or will never read: what it asked is answered, and the connection ends."""
    with Server(home) as server:
        quiet = descriptors(server.pid)
        with many([server.http, server.rpc], 200) as socks:
            for number, sock in enumerate(socks):
                sock.sendall(frame(1, "ping", {}) if number % 2 else LIVEZ)
                sock.shutdown(socket.SHUT_WR)
            eventually(lambda: descriptors(server.pid) <= quiet + 5, 20)
            for sock in socks:
                assert sock.recv(65_536)
        assert_calm(server)
        assert server.terminate() == 0


def test_no_descriptors_left_refuses_and_goes_on(home: Path) -> None:
    """As many as the server may have and more: the rest is turned away, shards keep their files, all is well after."""
    prefix = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh"]
    with Server(home, "[server]\nshards = 4\n", prefix=prefix) as server, RpcClient(server.rpc) as early:
        assert early.call("reserve", key="k")["result"] == "reserved"
        with many([server.http, server.rpc], 400):
            time.sleep(0.5)
            assert descriptors(server.pid) < 256
            for number in range(20):
                assert early.call("accept", key=f"a{number}")["result"] == "accepted"
            told = raw(server.http, LIVEZ)
            assert told == b"" or told.startswith((b"HTTP/1.1 503", b"HTTP/1.1 200"))
        eventually(lambda: serves_at_last(server), 30)
        assert server.alive
        assert server.terminate() == 0
    for line in server.log.splitlines():
        assert "Traceback" not in line


def serves_at_last(server: Server) -> bool:
    with contextlib.suppress(Exception):
        return serves(server)
    return False
