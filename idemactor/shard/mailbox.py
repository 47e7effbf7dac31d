"""How commands come to a shard and answers leave it: in batches, both ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from idemactor.core.commands import Command, Reserve, Watch
from idemactor.core.queries import Finding, Query
from idemactor.core.replies import Reply
from idemactor.shard.timer import Timer

Answer = Reply | Finding
"""What a shard answers."""


class Sink(Protocol):
    """Where answers go: a connection, or one request of one."""

    @property
    def closed(self) -> bool:
        """Whether the caller was seen to leave: nothing is granted to a caller that waits and has left."""

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Take the answers of one batch, each with the tag of its command. Must neither block nor raise."""


@dataclass(slots=True, eq=False)
class Envelope:
    """A command on its way, and where its answer goes. ``tag`` is the sink's own and means nothing to the shard."""

    command: Command | Query
    sink: Sink
    tag: object

    @property
    def closed(self) -> bool:
        """Whether the caller was seen to leave."""
        return self.sink.closed


def waits(command: Command | Query) -> bool:
    """Whether its answer may take a while on purpose: until somebody else did something, or a time is over."""
    return (type(command) is Reserve or type(command) is Watch) and command.wait_ms > 0


class Mailbox:
    """A bounded queue with one reader. What does not fit is refused at once instead of queueing without bound."""

    def __init__(self, size_max: int) -> None:
        self._queue: deque[Envelope] = deque()
        self._size_max = size_max
        self._reader: trio.lowlevel.Task | None = None
        self._rung = False
        self._timer = Timer(self.ring)

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, envelopes: Sequence[Envelope]) -> int:
        """Take as many as there is room for, in order; returns how many were taken."""
        room = self._size_max - len(self._queue)
        taken = len(envelopes) if len(envelopes) <= room else max(0, room)
        if taken:
            self._queue.extend(envelopes[:taken] if taken < len(envelopes) else envelopes)
            self.ring()
        return taken

    def take(self, limit: int) -> list[Envelope]:
        """The next envelopes, at most ``limit``."""
        queue = self._queue
        if len(queue) <= limit:
            taken = list(queue)
            queue.clear()
            return taken
        return [queue.popleft() for _ in range(limit)]

    def ring(self) -> None:
        """Wake the reader, or keep it from falling asleep next time."""
        if self._reader is not None:
            reader, self._reader = self._reader, None
            trio.lowlevel.reschedule(reader)
        else:
            self._rung = True

    async def wait(self, until: float) -> None:
        """Sleep until something is in the box, somebody rings, or it is ``until`` by trio's clock, seconds.

        Time only rings while ``run_timer`` runs, and it may do so early.
        """
        if self._queue or self._rung:
            self._rung = False
            await trio.lowlevel.checkpoint()
            return
        self._timer.set(until)
        self._reader = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._rung = False

    async def run_timer(self) -> None:
        """Let time ring, until cancelled."""
        await self._timer.run()

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED
