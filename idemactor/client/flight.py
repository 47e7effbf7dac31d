"""A call on its way, and what carries it: a connection, or shards in this very program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from idemactor.client.errors import IdemactorClientError, Overloaded


@dataclass(frozen=True, slots=True)
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
        answer: The latest answer.
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
    answer: Answer | None = None
    body: bytes = b""
    slots: anyio.Semaphore | None = None
    done: anyio.Event = field(default_factory=anyio.Event)

    def begin(self) -> None:
        """Get ready to be sent (again)."""
        self.answer = None
        self.done = anyio.Event()

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
        self.done.set()

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
        """Whether it always answers, so that nothing but repeating need be bounded."""

    @property
    def where(self) -> str:
        """The address, for people."""

    @property
    def trouble(self) -> BaseException | None:
        """Why there is no connection just now, where that is known."""

    async def exchange(self, flight: Flight) -> Answer:
        """Send a call and wait for its answer, over as many connections as it takes; for ever, if need be."""

    async def adopt(self, flight: Flight) -> Answer | None:
        """The answer to a ``kept`` call whose caller was cancelled; None where none will come."""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Carry calls until cancelled; started once that is possible at all. Raises what makes it impossible."""
