"""The calls of one link, wherever they stand: in line for a place, in the queue to be sent, or on their way.

Callers put calls in and wait; whoever owns the connection takes what is to be written and brings what was read. So a
caller that is cancelled never tears a frame apart, and what many callers ask in one turn of the event loop goes out in
one piece. No I/O.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

from idemactor.client.alarms import Alarms
from idemactor.client.errors import IdemactorClientError, Unreachable
from idemactor.client.eventloop import Future, running
from idemactor.client.flight import Answer, Flight
from idemactor.client.protocol import Protocol, encode_body, encode_call
from idemactor.client.results import error_of

WRITE_BYTES: Final = 262_144
"""About how much is handed to the socket at once."""

WAITING_MAX: Final = 1_024
"""How many reserves may wait on the server at a time. They have a bound of their own: were they among the others,
they could keep out the commit that they wait for."""

_PING: Final = encode_body("ping", {})


class Places:
    """How many calls of a kind may be on their way; one more stands in line."""

    __slots__ = ("free", "line")

    def __init__(self, free: int) -> None:
        self.free = free
        self.line: deque[Flight] = deque()


class _LoopClock:
    """The event loop's clock, by which calls are given up."""

    def now_s(self) -> float:
        return anyio.current_time()

    async def sleep_until(self, when_s: float) -> None:
        await anyio.sleep_until(when_s)


class Pipeline:
    """The calls of one link; made in the event loop in which they are made.

    Args:
        in_flight_max: How many calls may be on their way; one more waits.

    Attributes:
        on_demand: Called when there is something to be sent.
        heard: Whether anything came since ``connected``.
        heard_at: When something came last, seconds of the event loop's clock.
        deadlines: When callers give up; must be run.
    """

    def __init__(self, in_flight_max: int) -> None:
        loop = running()
        self.on_demand: Callable[[], None] = self._tell_demand
        self.heard = False
        self.heard_at = 0.0
        self.deadlines = Alarms(_LoopClock(), self._give_up)
        self._now_s = loop.now_s
        self._future: Callable[[], Future[Answer | None]] = loop.future
        self._plain = Places(in_flight_max)
        self._waiting = Places(WAITING_MAX)
        self._queue: deque[Flight] = deque()
        self._protocol: Protocol[Flight] = Protocol()
        self._demanding: Future[None] | None = None
        self._closed: IdemactorClientError | None = None

    # ---------------------------------------------------------------------------------------------------- for callers

    async def exchange(self, flight: Flight) -> Answer | None:
        """Put a call in and wait for its answer, however often it has to be sent; None: its deadline has passed.

        Raises:
            InvalidRequest: It cannot be sent at all.
            TooLarge: No server would take it.
        """
        if self._closed is not None:
            return Answer(self._closed)
        flight.body = flight.body or encode_call(flight.method, flight.params, flight.parent)
        flight.places = places = self._waiting if flight.waits_ms else self._plain
        if places.free and flight.deadline_s <= self._now_s():
            return None
        flight.caller = caller = self._future()
        if places.free:
            places.free -= 1
            self._enqueue(flight)
        else:
            # A place among those that wait is not worth less patience than the waiting itself.
            flight.wait(True)
            flight.stands_in = places.line
            places.line.append(flight)
        self._arm(flight)
        try:
            return await caller
        except BaseException:
            self._leave(flight)
            raise
        finally:
            self._disarm(flight)

    def _give_up(self, flight: Flight) -> None:
        """Its deadline has passed."""
        if flight.caller is not None and not flight.caller.done():
            self._leave(flight)
            flight.caller.set_result(None)

    def _leave(self, flight: Flight) -> None:
        """The caller waits no more: what was not sent never will be, what was sent is adopted or forgotten."""
        line = flight.stands_in
        if line is not None:
            line.remove(flight)
            flight.stands_in = None
            if line is self._queue:
                self._free(flight)
        elif flight.answer is None and flight.places is not None:
            flight.adopted = flight.kept
            flight.abandoned = not flight.kept

    def _arm(self, flight: Flight) -> None:
        """Have the deadline ring, as it is now."""
        self._disarm(flight)
        if flight.deadline_s < math.inf:
            flight.alarm = self.deadlines.set(flight.deadline_s, flight)

    def _disarm(self, flight: Flight) -> None:
        alarm, flight.alarm = flight.alarm, None
        if alarm is not None:
            self.deadlines.drop(alarm)

    def _wait(self, flight: Flight, waiting: bool, *, spent: bool = True) -> None:
        """Note that a call waits on purpose from here on, or not: that moves its deadline."""
        if flight.waits_ms:
            flight.wait(waiting, spent=spent)
            if not flight.has_left:
                self._arm(flight)

    def _enqueue(self, flight: Flight) -> None:
        flight.answer = None
        flight.stands_in = self._queue
        self._queue.append(flight)
        self.on_demand()

    def _free(self, flight: Flight) -> None:
        """Its place is the next one's in line."""
        places, flight.places = flight.places, None
        if places is None:
            return
        if not places.line:
            places.free += 1
            return
        following = places.line.popleft()
        self._wait(following, False)
        self._enqueue(following)

    # ------------------------------------------------------------------------------------------- for the connection

    async def demand(self) -> None:
        """Return once there is something to be sent; for one task at a time, while ``on_demand`` is as it was."""
        while not self._queue:
            self._demanding = running().future()
            await self._demanding

    def _tell_demand(self) -> None:
        if self._demanding is not None and not self._demanding.done():
            self._demanding.set_result(None)

    def connected(self, protocol: Protocol[Flight]) -> None:
        """There is a connection, whose calls and answers are those of ``protocol``."""
        self._protocol = protocol
        self.heard = False
        self.heard_at = self._now_s()

    def frames(self) -> bytes:
        """What is to be written next, about ``WRITE_BYTES`` at most; nothing where there is nothing."""
        found: list[bytes] = []
        room = WRITE_BYTES
        now_s = self._now_s()
        while self._queue and room > 0:
            flight = self._queue.popleft()
            flight.stands_in = None
            if flight.has_left:  # Cancelled just now: what was not sent never will be.
                self._free(flight)
                continue
            frame = self._protocol.request(flight.body, flight)
            flight.sent(now_s)
            if flight.waits_ms:
                self._arm(flight)
            found.append(frame)
            room -= len(frame)
        return b"".join(found)

    def hear(self, data: bytes) -> None:
        """What was read: wakes whose answers it brings.

        Raises:
            ProtocolViolation: What came is no answer to anything that was asked.
        """
        self.heard = True
        self.heard_at = self._now_s()
        for flight, error, result in self._protocol.receive(data):
            flight.finish(Answer(None if error is None else error_of(error), result))
            self._free(flight)

    def check_silence(self, silence_s: float) -> None:
        """See to it that a server is there while answers are missing.

        Raises:
            TimeoutError: A server that hangs, or a network that swallows everything, looks like this: asked, and not a
                byte for ``silence_s``.
        """
        now_s = self._now_s()
        if now_s - self.heard_at < silence_s:
            return
        on_wire = self._protocol.outstanding
        if any(now_s > flight.sent_at + silence_s + flight.waits_ms / 1000 for flight in on_wire):
            raise TimeoutError("nothing came after a call was sent")
        if on_wire and not self._queue and all(flight.waits_ms for flight in on_wire):
            # Who is waited for may be gone: a server that is there answers this.
            self._enqueue(Flight("ping", {}, abandoned=True, body=_PING))

    def lose(self) -> None:
        """The connection is over: what somebody still waits for goes out again, in the order in which it was sent."""
        lost = list(self._protocol.outstanding)
        self._protocol = Protocol()
        again: list[Flight] = []
        for flight in lost:
            flight.uncertain = True
            self._wait(flight, False, spent=self.heard_at > flight.sent_at)
            if flight.adopted:
                flight.finish(Answer(Unreachable("the connection ended before the answer came")))
                self._free(flight)
            elif flight.abandoned:
                self._free(flight)
            else:
                flight.stands_in = self._queue
                again.append(flight)
        self._queue.extendleft(reversed(again))

    def refuse_all(self, error: IdemactorClientError) -> None:
        """Nothing in the queue will be sent."""
        refused = list(self._queue)
        self._queue.clear()
        for flight in refused:
            flight.stands_in = None
            flight.finish(Answer(error))
            self._free(flight)

    def close(self, error: IdemactorClientError) -> None:
        """Nothing will be sent any more; who asks is told ``error``."""
        self._closed = error
        while self._queue:
            self.refuse_all(error)
