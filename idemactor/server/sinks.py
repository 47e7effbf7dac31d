"""Where the answers of one request go: a single call, a batch, or a question to one shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from idemactor.core.limits import BATCH_ANSWER_BYTES_MAX
from idemactor.core.queries import IncidentsPage
from idemactor.core.replies import Untold
from idemactor.server.backlog import Backlog, Hold, not_kept, outcome_bytes
from idemactor.shard.mailbox import Answer
from idemactor.wire.fields import Dialect


def _nobody() -> None:
    """Is told nothing."""


class Replies:
    """A ``Sink`` that collects the answers of one request.

    The tag of every command is its index, from 0. ``closed`` is set once the caller was seen to leave, so that a
    caller who waits is never granted what nobody would use.

    Args:
        count: How many commands the request has.
        backlog: Where their outcomes count until the answers are taken, and who says whether there is room for them;
            None: they are the process's own.
        on_complete: Called, by whoever delivers, when the last answer is here. It must neither block nor raise.
        dialect: How the answers leave, which is as they count.
    """

    __slots__ = (
        "_abandoned",
        "_answers",
        "_backlog",
        "_bytes",
        "_dialect",
        "_done",
        "_missing",
        "_on_complete",
        "closed",
    )

    def __init__(
        self,
        count: int,
        on_complete: Callable[[], None] = _nobody,
        backlog: Backlog | None = None,
        dialect: Dialect = Dialect.MSGPACK,
    ) -> None:
        self.closed = False
        self._answers: list[Answer | None] = [None] * count
        self._missing = count
        self._done: Final = trio.Event()
        self._on_complete = on_complete
        self._backlog = backlog
        self._dialect = dialect
        self._bytes = 0
        self._abandoned = False

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Take the answers of one batch of one shard."""
        for tag, answer in answers:
            assert isinstance(tag, int)
            if self._answers[tag] is None:
                self._answers[tag] = answer if self._backlog is None else self._kept(answer, self._backlog)
                self._missing -= 1
        if not self._missing and not self._done.is_set():
            self._done.set()
            # Mostly a function that knows these replies: kept, the two would be a cycle with all that was answered.
            on_complete, self._on_complete = self._on_complete, _nobody
            on_complete()

    def _kept(self, answer: Answer, backlog: Backlog) -> Answer:
        """The answer, or what is told in its place: what is not to be told is not kept until then either."""
        size = outcome_bytes(answer, self._dialect)
        if not size:
            return answer
        if self._abandoned:
            return not_kept(answer)
        # One answer of a batch may be as large as very many of single calls, and is all that its client has not read.
        if backlog.full or (backlog.crowded and (len(self._answers) > 1 or type(answer) is IncidentsPage)):
            return backlog.refuse(answer)
        if self._bytes + size > BATCH_ANSWER_BYTES_MAX:
            return backlog.refuse(answer, Untold.BATCH_FULL)
        self._bytes += size
        backlog.held_bytes += size
        return answer

    def abandon(self) -> None:
        """Nobody will take the answers."""
        self.closed = self._abandoned = True
        self._answers = [answer if answer is None else not_kept(answer) for answer in self._answers]
        self._release()

    def take(self, hold: Hold | None = None) -> list[Answer]:
        """As ``answers``, once: they count as read, or, with a ``hold``, there."""
        if hold is not None:
            hold.add(self._bytes)
        self._release()
        return self.answers

    @property
    def held_bytes(self) -> int:
        """What the answers count for that are here and were not taken."""
        return self._bytes

    def _release(self) -> None:
        if self._backlog is not None:
            self._backlog.held_bytes -= self._bytes
            self._bytes = 0

    @property
    def complete(self) -> bool:
        """Whether every answer is here."""
        return not self._missing

    @property
    def answers(self) -> list[Answer]:
        """Every answer, in the order of the commands. Only once they are ``complete``."""
        answers = [answer for answer in self._answers if answer is not None]
        assert len(answers) == len(self._answers)
        return answers

    async def wait(self, hold: Hold | None = None) -> list[Answer]:
        """Wait for every answer, and take them. Whoever cancels the waiting has left: the sink is closed."""
        if self._missing:
            try:
                await self._done.wait()
            except trio.Cancelled:
                self.abandon()
                raise
        return self.take(hold)
