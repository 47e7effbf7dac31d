"""A call on its way, and what carries it: a connection, or shards in this very program."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from idemactor.client.errors import IdemactorClientError, Overloaded
from idemactor.core.values import slotted

if TYPE_CHECKING:
    from idemactor.client.alarms import Alarm
    from idemactor.client.eventloop import Future
    from idemactor.client.pipeline import Places


@slotted
class Answer:
    """What came of a call: an error, or a result as it came."""

    error: IdemactorClientError | None
    result: Any = None


@dataclass(slots=True, eq=False)
class Flight:
    """One call. It may be sent more than once: every command can be repeated as it stands (contract, section 3).

    Attributes:
        waits_ms: How long the server may take on purpose.
        kept: The answer is wanted even if the caller is cancelled: somebody else will ``adopt`` it.
        adopted: The caller is gone, somebody else waits for the answer.
        abandoned: Nobody waits for the answer.
        sends: How often it was sent.
        first_sent_at: When it was sent first, seconds of the event loop's clock.
        sent_at: When it was sent last.
        waiting: It is with a server that may take its time on purpose, or stands in line behind others that are.
        on_move: Called when ``waiting`` changes, with whether the time since the last change was spent in waiting.
        uncertain: An earlier sending may have been carried out, and its answer is lost.
        deadline_s: When its caller gives it up, seconds of the event loop's clock.
        answer: The latest answer.
        body: What is sent, once it is encoded.
        caller: Where its caller waits: for an answer, or None once the deadline has passed.
        alarm: What rings then.
        places: Where it has a place, or stands in line for one.
        stands_in: The line, or the queue to be sent, that it stands in.
        over: Set with the answer, for who adopted it.
        own: Nobody's call but the client's: it is no part of anybody's trace.
        parent: Where its caller's trace stands, a ``traceparent``; None: nowhere.
    """

    method: str
    params: dict[str, Any]
    waits_ms: int = 0
    kept: bool = False
    adopted: bool = False
    abandoned: bool = False
    sends: int = 0
    first_sent_at: float = 0.0
    sent_at: float = 0.0
    waiting: bool = False
    on_move: Callable[[bool], None] | None = None
    uncertain: bool = False
    deadline_s: float = math.inf
    answer: Answer | None = None
    body: bytes = b""
    caller: Future[Answer | None] | None = None
    alarm: Alarm[Flight] | None = None
    places: Places | None = None
    stands_in: deque[Flight] | None = None
    over: anyio.Event | None = None
    own: bool = False
    parent: str | None = None

    def sent(self, now_s: float) -> None:
        """It is handed to whatever carries it."""
        if not self.sends:
            self.first_sent_at = now_s
        self.sends += 1
        self.sent_at = now_s
        self.wait(True)

    def wait(self, waiting: bool, *, spent: bool = True) -> None:
        """It waits from here on, or not; not ``spent``: with a server that was dead, so that it was no waiting."""
        if waiting is self.waiting or not self.waits_ms:
            return
        self.waiting = waiting
        if self.on_move is not None:
            self.on_move(spent)

    def finish(self, answer: Answer) -> None:
        """The answer is here, or it is known that none will come."""
        self.answer = answer
        self.wait(False)
        if self.caller is not None and not self.caller.done():
            self.caller.set_result(answer)
        if self.over is not None:
            self.over.set()

    async def finished(self) -> None:
        """Return once the answer is here, or it is known that none will come; for who adopted it."""
        if self.answer is None:
            self.over = self.over or anyio.Event()
            await self.over.wait()

    @property
    def has_left(self) -> bool:
        """Whether its caller waits no more: it is cancelled, or the answer is here."""
        return self.caller is not None and self.caller.done()

    @property
    def may_have_acted(self) -> bool:
        """Whether the server may have carried it out without its caller knowing."""
        if self.uncertain or (self.sends and self.answer is None):
            return True
        return self.answer is not None and not isinstance(self.answer.error, Overloaded)


class Channel(Protocol):
    """What carries calls."""

    @property
    def local(self) -> bool:
        """Whether it always answers, so that nothing but repeating need be bounded; it knows no deadlines."""

    @property
    def where(self) -> str:
        """The address, for people."""

    @property
    def trouble(self) -> BaseException | None:
        """Why there is no connection just now, where that is known."""

    async def exchange(self, flight: Flight) -> Answer | None:
        """Send a call and wait for its answer, over as many connections as it takes; None: its deadline has passed."""

    async def adopt(self, flight: Flight) -> Answer | None:
        """The answer to a ``kept`` call whose caller was cancelled; None where none will come."""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Carry calls until cancelled; started once that is possible at all. Raises what makes it impossible."""
