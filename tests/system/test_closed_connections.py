"""What connections held is given back when they are closed, whatever they were in the middle of."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.system.clients import connect, frame, read_to_end
from tests.system.process import Server, assert_calm
from tests.system.test_idle import resident_kb, serves

ROUNDS: Final = 150
GROWTH_KB_MAX: Final = 50_000
"""Of all rounds together, which say 300 MB: what 25 of them hold, for what the allocator keeps."""
CONFIG: Final = """
[namespaces.default]

[gateway]
bind = ["127.0.0.1:0"]
body_bytes_max = 8388608

[[gateway.routes]]
prefix = "/orders"
upstream = "http://127.0.0.1:1"
namespace = "default"
"""


def unfinished_frame(server: Server) -> tuple[str, bytes]:
    return server.rpc, frame(1, "commit", {"outcome": bytes(2_000_000)})[:-10]


def whole_commit(server: Server) -> tuple[str, bytes]:
    outcome = {"status": 200, "body": bytes(2_000_000)}
    return server.rpc, frame(1, "commit", {"namespace": "default", "key": "k", "token": 1, "outcome": outcome})


def unfinished_body(server: Server) -> tuple[str, bytes]:
    head = (
        b"POST /v1/default/commit HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2097152\r\n"
    )
    return server.http, head + b"\r\n" + b" " * 2_000_000


def unfinished_request(server: Server) -> tuple[str, bytes]:
    head = b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 2097152\r\n\r\n"
    return server.addresses("gateway")[0], head + bytes(2_000_000)


@pytest.mark.parametrize("attack", [unfinished_frame, whole_commit, unfinished_body, unfinished_request])
def test_closed_connections_hold_nothing(home: Path, attack: Callable[[Server], tuple[str, bytes]]) -> None:
    with Server(home, CONFIG) as server:
        address, said = attack(server)
        _come_and_go(address, said, 5)
        before = resident_kb(server.pid)
        _come_and_go(address, said, ROUNDS)
        assert serves(server)
        grown = resident_kb(server.pid) - before
        print(f"{ROUNDS} connections with {len(said)} bytes each: {grown} KB")
        assert grown < GROWTH_KB_MAX
        assert_calm(server)
        assert server.terminate() == 0


def _come_and_go(address: str, said: bytes, count: int) -> None:
    """One after the other: each is seen to its end by the server before the next, or what counts is what is open."""
    for _ in range(count):
        with connect(address, 30) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            read_to_end(sock)
