"""How commands come to a shard and answers leave it: in batches, both ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from idemactor.core.commands import Command, Reserve, Watch
from idemactor.core.queries import Acknowledge, Finding, FindOperation, ListIncidents, ListRecords, Query, Take
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


def _tenant_of(envelope: Envelope) -> str:
    """Whose line it stands in; what no tenant asks, the server's own questions, has one to itself."""
    command = envelope.command
    if isinstance(command, ListRecords | ListIncidents | Acknowledge | Take | FindOperation):
        return command.tenant or ""
    return "" if isinstance(command, Query) else command.identity.tenant


class Mailbox:
    """A bounded queue with one reader. What does not fit is refused at once instead of queueing without bound.

    As long as one turn takes all that waits, it is a queue. When more waits, each tenant has a line of its own and the
    lines take turns, so that whoever asks without measure holds up itself; the order within a tenant, and so of a key,
    stays. The bound is a tenant's: there are as many lines as the configuration has tenants.

    Args:
        size_max: How many envelopes of one tenant may wait.
    """

    def __init__(self, size_max: int) -> None:
        self._queue: deque[Envelope] = deque()
        self._lines: dict[str, deque[Envelope]] = {}
        self._in_lines = 0
        self._size_max = size_max
        self._reader: trio.lowlevel.Task | None = None
        self._rung = False
        self._timer = Timer(self.ring)

    def __len__(self) -> int:
        return len(self._queue) + self._in_lines

    def __iter__(self) -> Iterator[Envelope]:
        """What waits, line by line."""
        for line in (*self._lines.values(), self._queue):
            yield from line

    def put(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Take as many as there is room for, in order; returns those that were not taken."""
        refused: list[Envelope] = []
        if len(self) + len(envelopes) <= self._size_max:
            self._queue.extend(envelopes)
        else:
            self._sort()
            for envelope in envelopes:
                if not self._line_up(envelope):
                    refused.append(envelope)
        if len(refused) < len(envelopes):
            self.ring()
        return refused

    def take(self, limit: int) -> list[Envelope]:
        """The next envelopes, at most ``limit``."""
        queue = self._queue
        if not self._lines and len(queue) <= limit:
            taken = list(queue)
            queue.clear()
            return taken
        self._sort()
        return self._take_turns(limit)

    def _sort(self) -> None:
        """Bring what came into the lines; it fitted when it came."""
        for envelope in self._queue:
            self._lines.setdefault(_tenant_of(envelope), deque()).append(envelope)
        self._in_lines += len(self._queue)
        self._queue.clear()

    def _line_up(self, envelope: Envelope) -> bool:
        tenant = _tenant_of(envelope)
        if len(self._lines.get(tenant, ())) >= self._size_max:
            return False
        self._lines.setdefault(tenant, deque()).append(envelope)
        self._in_lines += 1
        return True

    def _take_turns(self, limit: int) -> list[Envelope]:
        """As many from each line as long as there are any: who asks for little is not held up by who asks for much."""
        taken: list[Envelope] = []
        while self._lines and len(taken) < limit:
            share = max(1, (limit - len(taken)) // len(self._lines))
            for tenant in list(self._lines)[: limit - len(taken)]:
                line = self._lines.pop(tenant)
                taken.extend(line.popleft() for _ in range(min(share, len(line))))
                if line:
                    self._lines[tenant] = line
        self._in_lines -= len(taken)
        return taken

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
        if self._queue or self._in_lines or self._rung:
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
