"""A load generator for MessagePack-RPC: one process, many connections, a fixed number of calls in flight on each.

It encodes its calls by hand around a counter and reads answers without decoding them, so that the server and not the
generator is the bottleneck. Run as ``python -m bench.rpc_load`` it prints its latencies as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Final

import msgpack

RECEIVE_BYTES: Final = 262_144


@dataclass(slots=True)
class Connection:
    """One connection and when each call in flight left; answers of one connection come in any order."""

    sock: socket.socket
    unpacker: msgpack.Unpacker = field(default_factory=lambda: msgpack.Unpacker(raw=False))
    sent_at: dict[int, float] = field(default_factory=dict)


class Load:
    """Reserves of new keys, as many as the server answers."""

    def __init__(self, address: str, connections: int, in_flight: int) -> None:
        host, port = address.rsplit(":", 1)
        self._prefix = os.urandom(6).hex()
        self._next = 0
        self._in_flight = in_flight
        self._by_fd: dict[int, Connection] = {}
        self._poll = select.epoll()
        for _ in range(connections):
            sock = socket.create_connection((host, int(port)))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._by_fd[sock.fileno()] = Connection(sock)
            self._poll.register(sock.fileno(), select.EPOLLIN)

    def run(self, seconds: float) -> tuple[list[float], float]:
        """Load the server for ``seconds``; returns latencies and the time taken, seconds."""
        latencies: list[float] = []
        started = time.perf_counter()
        for connection in self._by_fd.values():
            self._send(connection, self._in_flight)
        end = started + seconds
        while time.perf_counter() < end:
            for descriptor, _ in self._poll.poll(1.0):
                self._receive(self._by_fd[descriptor], latencies)
        taken = time.perf_counter() - started
        for connection in self._by_fd.values():
            connection.sock.close()
        return latencies, taken

    def _send(self, connection: Connection, count: int) -> None:
        calls = []
        for _ in range(count):
            self._next += 1
            number = self._next
            key = b"%s-%d" % (self._prefix.encode(), number)
            connection.sent_at[number] = time.perf_counter()
            calls.append(
                b"\x94\x00\xce" + struct.pack(">I", number) + b"\xa7reserve\x91\x82\xa9namespace\xa7default\xa3key"
                b"\xd9" + bytes([len(key)]) + key
            )
        connection.sock.sendall(b"".join(calls))

    def _receive(self, connection: Connection, latencies: list[float]) -> None:
        data = connection.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed a connection")
        now = time.perf_counter()
        connection.unpacker.feed(data)
        answered = 0
        for _, number, error, result in connection.unpacker:
            if error is not None or result["result"] != "reserved":
                raise RuntimeError(f"not reserved: {error or result}")
            latencies.append(now - connection.sent_at.pop(number))
            answered += 1
        self._send(connection, answered)


def main() -> None:
    """Load one server as the command line says and print what came of it."""
    parser = argparse.ArgumentParser(description="Load an idemactor server over MessagePack-RPC.")
    parser.add_argument("address")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    latencies, seconds = Load(given.address, given.connections, given.in_flight).run(given.seconds)
    print(json.dumps({"latencies_s": latencies, "seconds": seconds}))


if __name__ == "__main__":
    main()
