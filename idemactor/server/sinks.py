"""Where the answers of one request go: a single call, a batch, or a question to one shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from idemactor.shard.mailbox import Answer


def _nobody() -> None:
    """Is told nothing."""


class Replies:
    """A ``Sink`` that collects the answers of one request.

    The tag of every command is its index, from 0. ``closed`` is set once the caller was seen to leave, so that a
    caller who waits is never granted what nobody would use.

    Args:
        count: How many commands the request has.
        on_complete: Called, by whoever delivers, when the last answer is here. It must neither block nor raise.
    """

    __slots__ = ("_answers", "_done", "_missing", "_on_complete", "closed")

    def __init__(self, count: int, on_complete: Callable[[], None] = _nobody) -> None:
        self.closed = False
        self._answers: list[Answer | None] = [None] * count
        self._missing = count
        self._done: Final = trio.Event()
        self._on_complete = on_complete

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Take the answers of one batch of one shard."""
        for tag, answer in answers:
            assert isinstance(tag, int)
            if self._answers[tag] is None:
                self._answers[tag] = answer
                self._missing -= 1
        if not self._missing and not self._done.is_set():
            self._done.set()
            # Mostly a function that knows these replies: kept, the two would be a cycle with all that was answered.
            on_complete, self._on_complete = self._on_complete, _nobody
            on_complete()

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

    async def wait(self) -> list[Answer]:
        """Wait for every answer. Whoever cancels the waiting has left: the sink is closed."""
        if self._missing:
            try:
                await self._done.wait()
            except trio.Cancelled:
                self.closed = True
                raise
        return self.answers
