"""One task that reads for all plain connections of a door.

A task for each connection is woken for each request: with many callers that send one request at a time, most of the
work is waking. Here one task waits for an epoll descriptor of its own, reads every socket that has something without
blocking, and hands everything that one look brought to the shards together. A connection's own task sleeps meanwhile
and is only woken when there is something else to do than read.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from idemactor.shard.mailbox import Envelope

READ_BYTES: Final = 16_384
"""The most that is read from one connection before the next has its turn: some hundred small calls."""

LOOK_EVENTS: Final = 1_024
"""How many connections that are ready are told of at a time; those that are not among them come first then."""

LOOK_MS_MAX: Final = 5
"""When a look ends though more could be read, milliseconds: shards and other tasks have their turn too."""

REST: Final = 4
"""How many times as long as a look the lane rests after one that brought more than the shards have room for: what is
read then is only refused, and those that were taken before are to be carried out meanwhile."""

_MS_PER_S: Final = 1_000

_log = logging.getLogger(__name__)


class Reader(Protocol):
    """A connection that the lane reads for. Its methods must neither block nor raise."""

    @property
    def whose(self) -> str:
        """The tenant that it spoke for last; empty where nobody knows yet. Tenants take turns."""

    def received(self, data: bytes) -> None:
        """Something came."""

    def left(self) -> None:
        """The client sends no more, seen while it is paused: what it sent before is not read yet."""

    def ended(self) -> None:
        """Nothing more will come: the client closed its side, or the connection broke."""


class Lane:
    """Reads sockets as they have something to read.

    Args:
        route: Where commands go, see ``Router.route``; called once for everything that one look brought.
    """

    def __init__(self, route: Callable[[Sequence[Envelope]], int]) -> None:
        self._route = route
        self._epoll = select.epoll()
        self._readers: dict[int, Reader] = {}
        self._collected: list[Envelope] = []
        self._looking = False
        self._ready: dict[str, dict[int, int]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled."""
        task_status.started()
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                started = time.monotonic()
                if self._look():
                    await trio.sleep(REST * (time.monotonic() - started))
        finally:
            # Connections may end later than the lane; there is nothing left for them to leave.
            self._readers.clear()
            self._epoll.close()

    def watch(self, fd: int, reader: Reader) -> None:
        """Read a socket for ``reader`` from now on. It must not block, and nobody else may read it."""
        self._epoll.register(fd, select.EPOLLIN)
        self._readers[fd] = reader

    def pause(self, fd: int) -> None:
        """Let a client wait: what it sends stays in its socket. Harmless where it is not watched.

        A client that is gone for good is read from all the same, to the end, which is near: nobody can keep the system
        from reporting that one, again and again until it is read.
        """
        if fd in self._readers:
            self._epoll.modify(fd, select.EPOLLRDHUP)

    def resume(self, fd: int) -> None:
        """Go on reading after ``pause``. Harmless where it is not watched (any more): late answers come here."""
        if fd in self._readers:
            self._epoll.modify(fd, select.EPOLLIN)

    def leave(self, fd: int) -> None:
        """Read nothing more for the connection; harmless where it was never watched."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            # The number will be another connection's.
            for line in self._ready.values():
                line.pop(fd, None)

    def route(self, envelopes: Sequence[Envelope]) -> None:
        """Send commands to their shards, in order, together with all others of the look that is under way."""
        if self._looking:
            self._collected.extend(envelopes)
        else:
            self._route(envelopes)

    def _look(self) -> int:
        """Read what there is to read, within limits; returns how many commands were refused."""
        self._looking = True
        until = time.monotonic() + LOOK_MS_MAX / _MS_PER_S
        more = True
        while more and time.monotonic() < until:
            more = self._line_up() == LOOK_EVENTS
            # Whose turn does not come in this look is the first of its tenant in the next.
            while self._ready and time.monotonic() < until:
                self._take_turn()
        self._looking = False
        if self._collected:
            collected, self._collected = self._collected, []
            return self._route(collected)
        return 0

    def _line_up(self) -> int:
        """See who has something to read; returns how many."""
        events = self._epoll.poll(0, LOOK_EVENTS)
        for fd, event in events:
            reader = self._readers.get(fd)
            if reader is not None:
                self._ready.setdefault(reader.whose, {})[fd] = event
        return len(events)

    def _take_turn(self) -> None:
        """Attend to the first connection of the first tenant, who then is the last one."""
        tenant = next(iter(self._ready))
        line = self._ready.pop(tenant)
        if line:
            fd = next(iter(line))
            event = line.pop(fd)
            self._ready[tenant] = line
            self._attend(fd, event)

    def _attend(self, fd: int, event: int) -> None:
        reader = self._readers.get(fd)
        if reader is None:
            return
        if event == select.EPOLLRDHUP:
            # Told once: the system would report it until everything before it was read.
            self._epoll.modify(fd, 0)
            reader.left()
        else:
            self._read(fd, reader)

    def _read(self, fd: int, reader: Reader) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if data:
                reader.received(data)
                return
        except Exception as error:  # A bug in one connection's handling must not end the task that serves them all.
            _log.error("what a connection sent could not be handled; it is closed", exc_info=error)
        self.leave(fd)
        reader.ended()
