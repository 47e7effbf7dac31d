"""One task that reads for all plain connections of a door.

A task for each connection is woken for each request: with many callers that send one request at a time, most of the
work is waking. Here one task waits for an epoll descriptor of its own, reads every socket that has something without
blocking, and hands everything that one look brought to the shards together. A connection's own task sleeps meanwhile
and is only woken when there is something else to do than read.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import trio

from idemactor.shard.company import Company
from idemactor.shard.mailbox import Envelope

READ_BYTES: Final = 16_384
"""The most that is read from one connection before the next has its turn: some hundred small calls."""

SHARED_READ_BYTES: Final = 2_048
"""The same while several tenants are served: what one read brought is worked off before anybody else is read, and this
much takes about a millisecond."""

OVERLOADED_READ_BYTES: Final = 512
"""The same of a tenant that had to rest within the last ``OVERLOADED_S``. Of hundreds of connections each has more to
say than it is heard for: the less of each is heard, the sooner it is the turn of one that says little."""

OVERLOADED_S: Final = 1.0

WORKER_READ_BYTES: Final = 65_536
"""The same of another worker, however many are served: all of them wait for what comes from there. One answer
to an operator has as much."""

LOOK_EVENTS: Final = 1_024
"""How many connections of a tenant that are ready are told of at a time; those that are not among them come first
then."""

LOOK_MS_MAX: Final = 5
SHARED_LOOK_MS_MAX: Final = 1
HURRIED_LOOK_MS_MAX: Final = 0.5
"""When a look ends though more could be read, milliseconds: shards and other tasks have their turn too. The second,
while several tenants are served, the third, while one of them asks for little beside one that asks for too much."""

YOUNG_COMMANDS_MAX: Final = 192
"""After how many commands Python looks for cycles among what is new. It would by itself only once there are more
objects than before: where as many go as come, as in an overload, more and more wait for that, and it takes 20 ms."""

GLANCE_AFTER_S: Final = 0.005
"""For how long nothing was read of a tenant that is read between two looks: it asks for little."""

REST: Final = 24
"""How many times as long a tenant is not read from as was spent on commands of its that found no room: they were only
read to be refused, and those that were taken before are to be carried out meanwhile."""

REST_S_MAX: Final = 0.1
"""The longest such rest, seconds: a long look must not keep it from whatever has become free since."""

_MS_PER_S: Final = 1_000

_NOBODY: Final[Mapping[str, float]] = {}

_log = logging.getLogger(__name__)


class Reader(Protocol):
    """A connection that the lane reads for. Its methods must neither block nor raise."""

    @property
    def whose(self) -> str | None:
        """The tenant that it spoke for last; empty where nobody knows yet, None of another worker. They take turns."""

    def received(self, data: bytes) -> None:
        """Something came."""

    def left(self) -> None:
        """The client sends no more, seen while it is paused: what it sent before is not read yet."""

    def ended(self) -> None:
        """Nothing more will come: the client closed its side, or the connection broke."""


class _Line:
    """The connections of one tenant, and which of them have something to read."""

    __slots__ = ("epoll", "read_at", "readers", "ready", "rests_until", "tenant")

    def __init__(self, tenant: str | None) -> None:
        self.tenant = tenant
        self.epoll = select.epoll()
        self.readers: dict[int, Reader] = {}
        self.ready: dict[int, int] = {}
        self.rests_until = -math.inf
        self.read_at = -math.inf

    def poll(self) -> bool:
        """See who has something to read; whether there may be more of them."""
        events = self.epoll.poll(0, LOOK_EVENTS)
        self.ready.update(events)
        return len(events) == LOOK_EVENTS


class Lane:
    """Reads sockets as they have something to read.

    Each tenant's connections have an epoll descriptor of their own, and one more is readable where any of these is.
    So a tenant that has to rest is left out of that one, and nobody else is read any later for it.

    Args:
        route: Where commands go, see ``Router.route``; called once for everything that one look brought.
        company: Says whether several tenants are served; None: there is only one.
    """

    def __init__(
        self, route: Callable[[Sequence[Envelope]], Mapping[str, int]], company: Company | None = None
    ) -> None:
        self._route = route
        self._company = company or Company()
        self._epoll = select.epoll()
        self._lines: dict[str | None, _Line] = {}
        self._by_epoll: dict[int, _Line] = {}
        self._line_of: dict[int, _Line] = {}
        self._paused: set[int] = set()
        self._collected: list[Envelope] = []
        self._looking = False
        self._ready: dict[str | None, _Line] = {}
        self._resting: list[_Line] = []
        self._read_bytes = READ_BYTES
        self._overloaded_after = -math.inf
        self._young = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled."""
        task_status.started()
        self._company.glances.append(self._glance)
        try:
            while True:
                await self._wait()
                started = time.monotonic()
                refused = self._look(started)
                for tenant, share in refused.items():
                    self._rest(tenant, REST * share * (time.monotonic() - started))
        finally:
            self._company.glances.remove(self._glance)
            # Connections may end later than the lane; there is nothing left for them to leave.
            for line in self._lines.values():
                line.epoll.close()
            self._lines.clear()
            self._line_of.clear()
            self._epoll.close()

    def watch(self, fd: int, reader: Reader) -> None:
        """Read a socket for ``reader`` from now on. It must not block, and nobody else may read it."""
        self._join(fd, reader, select.EPOLLIN)

    def pause(self, fd: int) -> None:
        """Let a client wait: what it sends stays in its socket. Harmless where it is not watched.

        A client that is gone for good is read from all the same, to the end, which is near: nobody can keep the system
        from reporting that one, again and again until it is read.
        """
        if fd in self._line_of:
            self._paused.add(fd)
            self._line_of[fd].epoll.modify(fd, select.EPOLLRDHUP)

    def resume(self, fd: int) -> None:
        """Go on reading after ``pause``. Harmless where it is not watched (any more): late answers come here."""
        if fd in self._line_of:
            self._paused.discard(fd)
            self._line_of[fd].epoll.modify(fd, select.EPOLLIN)

    def leave(self, fd: int) -> None:
        """Read nothing more for the connection; harmless where it was never watched."""
        line = self._line_of.pop(fd, None)
        if line is not None:
            line.epoll.unregister(fd)
            self._paused.discard(fd)
            # The number will be another connection's.
            line.ready.pop(fd, None)
            del line.readers[fd]
            if not line.readers:
                self._close(line)

    def route(self, envelopes: Sequence[Envelope]) -> None:
        """Send commands to their shards, in order, together with all others of the look that is under way."""
        if self._looking:
            self._collected.extend(envelopes)
        else:
            self._route(envelopes)

    # ---------------------------------------------------------------------------------------------------------- lines

    def _join(self, fd: int, reader: Reader, events: int) -> None:
        tenant = reader.whose
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line(tenant)
            self._by_epoll[line.epoll.fileno()] = line
            self._epoll.register(line.epoll.fileno(), select.EPOLLIN)
        line.epoll.register(fd, events)
        line.readers[fd] = reader
        self._line_of[fd] = line

    def _close(self, line: _Line) -> None:
        """Its last connection has left."""
        del self._lines[line.tenant], self._by_epoll[line.epoll.fileno()]
        self._ready.pop(line.tenant, None)
        if line in self._resting:
            self._resting.remove(line)
        # Which takes it out of the other one, too.
        line.epoll.close()

    def _rest(self, tenant: str, seconds: float) -> None:
        """Leave somebody alone whose commands found no room."""
        line = self._lines.get(tenant)
        if line is not None and line not in self._resting:
            line.rests_until = trio.current_time() + min(seconds, REST_S_MAX)
            self._epoll.modify(line.epoll.fileno(), 0)
            self._ready.pop(tenant, None)
            self._resting.append(line)

    async def _wait(self) -> None:
        """Until there is something to read of somebody who does not rest."""
        if not self._resting:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            return
        with trio.move_on_at(min(line.rests_until for line in self._resting)):
            await trio.lowlevel.wait_readable(self._epoll.fileno())
        now = trio.current_time()
        for line in [line for line in self._resting if line.rests_until <= now]:
            self._resting.remove(line)
            self._epoll.modify(line.epoll.fileno(), select.EPOLLIN)

    # ----------------------------------------------------------------------------------------------------------- looks

    def _look(self, started: float) -> Mapping[str, float]:
        """Read what there is to read, within limits.

        Returns:
            Whose commands found no room, and what share of all that was read those are.
        """
        self._looking = True
        shared = self._company.shared
        self._read_bytes = SHARED_READ_BYTES if shared else READ_BYTES
        self._overloaded_after = trio.current_time() - OVERLOADED_S
        look_ms = HURRIED_LOOK_MS_MAX if self._company.hurried else SHARED_LOOK_MS_MAX if shared else LOOK_MS_MAX
        until = started + look_ms / _MS_PER_S
        more = True
        while more and time.monotonic() < until:
            more = self._line_up()
            if self._company.pressed:
                # Who asks for little is read as soon as ever, and who asks for much no more than once.
                for _ in range(len(self._ready)):
                    self._take_turn(started)
                break
            # Whose turn does not come in this look is the first of its tenant in the next.
            while self._ready and time.monotonic() < until:
                self._take_turn(started)
        self._looking = False
        if self._collected:
            collected, self._collected = self._collected, []
            self._young += len(collected)
            if self._young >= YOUNG_COMMANDS_MAX:
                self._young = 0
                gc.collect(0)
            return {tenant: count / len(collected) for tenant, count in self._route(collected).items()}
        return _NOBODY

    def _glance(self) -> None:
        """Read once of each tenant of whom nothing was read for a while; nobody else is read between two looks."""
        now = time.monotonic()
        found = [self._by_epoll[fd] for fd, _ in self._epoll.poll(0)]
        self._looking = True
        for line in found:
            if line.read_at < now - GLANCE_AFTER_S:
                if line.readers and not line.ready:
                    line.poll()
                if line.ready:
                    fd = next(iter(line.ready))
                    self._attend(line, fd, line.ready.pop(fd), now)
        self._looking = False
        collected, self._collected = self._collected, []
        if collected:
            self._route(collected)

    def _line_up(self) -> bool:
        """See who has something to read; whether there may be more of them."""
        more = False
        for fd, _ in self._epoll.poll(0):
            line = self._by_epoll[fd]
            if not line.ready:
                more = line.poll() or more
            self._ready.setdefault(line.tenant, line)
        return more

    def _take_turn(self, now: float) -> None:
        """Attend to the first connection of the first tenant, who then is the last one."""
        tenant = next(iter(self._ready))
        line = self._ready.pop(tenant)
        if line.ready:
            fd = next(iter(line.ready))
            event = line.ready.pop(fd)
            self._ready[tenant] = line
            self._attend(line, fd, event, now)

    def _attend(self, line: _Line, fd: int, event: int, now: float) -> None:
        line.read_at = now
        reader = line.readers[fd]
        if event == select.EPOLLRDHUP:
            # Told once: the system would report it until everything before it was read.
            line.epoll.modify(fd, 0)
            reader.left()
        else:
            self._read(fd, reader, self._size_for(line))

    def _size_for(self, line: _Line) -> int:
        if line.tenant is None:
            return WORKER_READ_BYTES
        return OVERLOADED_READ_BYTES if line.rests_until > self._overloaded_after else self._read_bytes

    def _read(self, fd: int, reader: Reader, size: int) -> None:
        try:
            data = os.read(fd, size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if data:
                reader.received(data)
                self._follow(fd, reader)
                return
        except Exception as error:  # A bug in one connection's handling must not end the task that serves them all.
            _log.error("what a connection sent could not be handled; it is closed", exc_info=error)
        self.leave(fd)
        reader.ended()

    def _follow(self, fd: int, reader: Reader) -> None:
        """Put a connection into the line of another tenant where it speaks for that one now."""
        line = self._line_of.get(fd)
        if line is not None and line.tenant != reader.whose:
            events = select.EPOLLRDHUP if fd in self._paused else select.EPOLLIN
            self.leave(fd)
            self._join(fd, reader, events)
