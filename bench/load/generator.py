"""A load generator: one process, many connections, and a clock.

Closed: a call leaves when one is answered, a fixed number under way on each connection. Open: calls leave when their
time has come, whatever the server does, and their latency counts from that time, so that a server that stalls cannot
hide the callers it kept away (no coordinated omission). Run as ``python -m bench.load.generator SPEC``.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.load.protocols import SPEAKERS, Speaker
from bench.load.sockets import connect
from bench.load.spec import Outcome, Spec

RECEIVE_BYTES: Final = 262_144

DRAIN_S: Final = 5.0
"""How long answers are waited for once the load is over."""

SPIN_S: Final = 0.0015
"""So long before a call is due the generator stops sleeping: epoll counts in whole milliseconds."""

_NEXT_WORD: Final = {"new": "reserved", "cycle": "reserved", "hot": "completed"}


class Connection:
    """One connection, what it waits for, and since when."""

    __slots__ = ("calls", "sock", "speaker")

    def __init__(self, sock: socket.socket, speaker: Speaker) -> None:
        self.sock = sock
        self.speaker = speaker
        self.calls: dict[int, tuple[float, bytes, str]] = {}


class Generator:
    """One load, carried out once."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._numbers = itertools.count(1)
        self._keys = _keys(spec)
        self._latencies: array[float] = array("d")
        self._refused = 0
        self._ending = False
        self._poll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        for _ in range(spec.connections):
            connection = Connection(connect(spec.address), SPEAKERS[spec.protocol]())
            self._by_fd[connection.sock.fileno()] = connection
            self._poll.register(connection.sock.fileno(), select.EPOLLIN)
        if spec.mode == "hot":
            self._settle_hot_key()

    def run(self) -> Outcome:
        """Load the server and say how it went."""
        cpu = time.process_time()
        started = time.perf_counter()
        if self._spec.rate > 0:
            self._run_open(started)
        else:
            self._run_closed(started)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        in_time = len(self._latencies)
        unanswered = self._drain()
        if self._spec.rate == 0:
            # In an open load those who still wait count: they are what a saturated server does to its callers. In a
            # closed one they are only what the end cut off.
            del self._latencies[in_time:]
        return Outcome(seconds, cpu, in_time, self._refused, unanswered, self._latencies)

    def _run_closed(self, started: float) -> None:
        for connection in self._by_fd.values():
            self._send(connection, [self._reserve(connection, started) for _ in range(self._spec.in_flight)])
        end = started + self._spec.seconds
        while time.perf_counter() < end:
            for descriptor, _ in self._poll.poll(1.0):
                connection = self._by_fd[descriptor]
                self._send(connection, self._receive(connection))

    def _run_open(self, started: float) -> None:
        """Send what is due, receive what is there, and sleep only where the next call is far away."""
        gap = 1 / self._spec.rate
        connections = itertools.cycle(self._by_fd.values())
        sent, total = 0, int(self._spec.seconds * self._spec.rate)
        while sent < total:
            now = time.perf_counter()
            while sent < total and started + sent * gap <= now:
                connection = next(connections)
                self._send(connection, [self._reserve(connection, started + sent * gap)])
                sent += 1
            left = started + sent * gap - time.perf_counter()
            for descriptor, _ in self._poll.poll(left - SPIN_S if left > 2 * SPIN_S else 0):
                connection = self._by_fd[descriptor]
                self._send(connection, self._receive(connection))

    def _drain(self) -> int:
        """Take the answers that are still under way; returns how many never came."""
        self._ending = True
        deadline = time.perf_counter() + DRAIN_S
        while any(connection.calls for connection in self._by_fd.values()) and time.perf_counter() < deadline:
            for descriptor, _ in self._poll.poll(0.1):
                self._receive(self._by_fd[descriptor])
        left = sum(len(connection.calls) for connection in self._by_fd.values())
        for connection in self._by_fd.values():
            connection.sock.close()
        self._poll.close()
        return left

    # ----------------------------------------------------------------------------------------------------------- calls

    def _reserve(self, connection: Connection, at: float) -> bytes:
        number, key = next(self._numbers), next(self._keys)
        connection.calls[number] = (at, key, _NEXT_WORD[self._spec.mode])
        return connection.speaker.reserve(number, key)

    def _commit(self, connection: Connection, at: float, key: bytes, token: int) -> bytes:
        number = next(self._numbers)
        connection.calls[number] = (at, key, "committed")
        return connection.speaker.commit(number, key, token)

    def _send(self, connection: Connection, calls: list[bytes]) -> None:
        if calls:
            connection.sock.sendall(b"".join(calls))

    def _receive(self, connection: Connection) -> list[bytes]:
        """Take what came; returns the calls that follow from it."""
        data = connection.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed a connection")
        now = time.perf_counter()
        following: list[bytes] = []
        closed, cycle = self._spec.rate == 0, self._spec.mode == "cycle"
        for number, word, token in connection.speaker.read(data):
            sent_at, key, wanted = connection.calls.pop(number)
            if word == wanted:
                self._latencies.append(now - sent_at)
            elif word == "":
                self._refused += 1
            else:
                raise RuntimeError(f"{wanted} was expected and {word} came for {key!r}")
            if self._ending:
                continue
            if cycle and word == "reserved":
                following.append(self._commit(connection, now, key, token))
            elif closed:
                following.append(self._reserve(connection, now))
        return following

    def _settle_hot_key(self) -> None:
        """Reserve and commit the one key that everybody asks for; Redis has no commit, a taken key is all it knows."""
        connection = next(iter(self._by_fd.values()))
        key = next(self._keys)
        connection.sock.sendall(connection.speaker.reserve(0, key))
        (_, word, token), *_ = connection.speaker.read(connection.sock.recv(RECEIVE_BYTES))
        if word == "reserved" and self._spec.protocol != "resp":
            connection.sock.sendall(connection.speaker.commit(0, key, token))
            list(connection.speaker.read(connection.sock.recv(RECEIVE_BYTES)))


def _keys(spec: Spec) -> Iterator[bytes]:
    if spec.mode == "hot":
        return itertools.repeat(b"hot-" + os.urandom(6).hex().encode())
    if spec.keys:
        return iter(Path(spec.keys).read_bytes().split())
    prefix = os.urandom(8).hex().encode()
    return (b"%b-%d" % (prefix, number) for number in itertools.count())


def main() -> None:
    """Carry out the load that the first argument describes."""
    outcome = Generator(Spec.from_json(sys.argv[1])).run()
    sys.stdout.buffer.write(outcome.to_bytes())


if __name__ == "__main__":
    main()
