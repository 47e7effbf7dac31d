"""A caller that asks far more than it should, in a process of its own: ``python -m tests.system.flood`` and JSON.

Every connection has so many requests on their way at all times, whatever the server can do; what is answered is
followed at once by another. So it is a load that does not give way, like many callers that know nothing of each other.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field

import msgpack

from tests.system.clients import connect, frame


@dataclass(slots=True)
class Told:
    """What came of it; latencies in milliseconds, of a sample."""

    results: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    admitted_p50_ms: float = 0.0
    admitted_p99_ms: float = 0.0
    refused_p50_ms: float = 0.0
    refused_p99_ms: float = 0.0

    @property
    def per_s(self) -> float:
        """How many calls a second were carried out."""
        return self.results.get("accepted", 0) / self.seconds

    @classmethod
    def of(cls, line: str) -> Told:
        return cls(**json.loads(line))


class _Connection:
    def __init__(self, address: str, token: str, number: int, depth: int) -> None:
        self.sock = connect(address)
        if token:
            self.sock.sendall(frame(0, "auth", {"token": token}))
            self.sock.recv(65_536)
        self.sock.setblocking(False)
        self._name = f"flood-{time.time_ns()}-{number}"
        self._unpacker = msgpack.Unpacker()
        self._msgid = 0
        self._begun: deque[tuple[int, float]] = deque()
        self._out = bytearray()
        self.ask(depth)

    def ask(self, count: int) -> None:
        now = time.perf_counter()
        for _ in range(count):
            self._msgid += 1
            key = f"{self._name}-{self._msgid}"
            self._out += frame(self._msgid, "accept", {"namespace": "default", "key": key})
        self._begun.append((self._msgid, now))

    def write(self) -> None:
        if self._out:
            try:
                sent = self.sock.send(memoryview(self._out)[:65_536])
            except BlockingIOError:
                return
            del self._out[:sent]

    def read(self, counts: Counter[str], admitted: list[float], refused: list[float]) -> int:
        try:
            data = self.sock.recv(262_144)
        except BlockingIOError:
            return 0
        if not data:
            raise ConnectionError("the server closed a connection")
        self._unpacker.feed(data)
        now, answered = time.perf_counter(), 0
        for _, msgid, error, result in self._unpacker:
            answered += 1
            word = result["result"] if error is None else error.partition(":")[0]
            counts[word] += 1
            while len(self._begun) > 1 and self._begun[0][0] < msgid:
                self._begun.popleft()
            (admitted if error is None else refused).append(now - self._begun[0][1])
        return answered


def flood(address: str, token: str, connections: int, depth: int, seconds: float) -> Told:
    """Ask without pause."""
    selector = selectors.DefaultSelector()
    opened = [_Connection(address, token, number, depth) for number in range(connections)]
    for one in opened:
        selector.register(one.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
    counts, admitted, refused = Counter[str](), list[float](), list[float]()
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        for key, events in selector.select(0.1):
            one = key.data
            if events & selectors.EVENT_WRITE:
                one.write()
            if events & selectors.EVENT_READ and (answered := one.read(counts, admitted, refused)):
                one.ask(answered)
    told = Told(dict(counts), time.perf_counter() - begun)
    for one in opened:
        one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        one.sock.close()
    told.admitted_p50_ms, told.admitted_p99_ms = _percentiles(admitted)
    told.refused_p50_ms, told.refused_p99_ms = _percentiles(refused)
    return told


def _percentiles(latencies_s: list[float]) -> tuple[float, float]:
    if not latencies_s:
        return 0.0, 0.0
    ordered = sorted(latencies_s)
    return ordered[len(ordered) // 2] * 1_000, ordered[int(len(ordered) * 0.99)] * 1_000


def main() -> None:
    # See ``test_overload``.
    os.nice(10)
    address, token, connections, depth, seconds = sys.argv[1:]
    print(json.dumps(asdict(flood(address, token, int(connections), int(depth), float(seconds)))), flush=True)


if __name__ == "__main__":
    main()
