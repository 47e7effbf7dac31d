"""How commands come to a shard and answers leave it: in batches, both ways."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from idemactor.core import limits
from idemactor.core.commands import Accept, Command, Commit, Dispatch, Doubt, Extend, Get, Release, Reserve, Watch
from idemactor.core.queries import (
    Acknowledge,
    Finding,
    FindOperation,
    ListIncidents,
    ListRecords,
    ListStuck,
    Query,
    Take,
)
from idemactor.core.replies import Reply
from idemactor.shard.timer import Timer

OVERLOADED_RETRY_MS: Final = 1_000
"""When a caller may try again who found a mailbox full, waited in one for too long, or met a server that shuts down."""

ENDINGS_SHARE: Final = 2
"""How many times as many of a tenant may wait where what comes is the end of an attempt."""

MEASURED_SHARE: Final = 0.25
"""For how much of the time that an envelope may wait is counted how many are taken, to know how many may wait."""

BOUND_MIN: Final = 64
"""How many of an overloaded tenant may wait in any case, however slow the shard was lately."""

LISTINGS: Final = frozenset({ListRecords, ListIncidents, ListStuck})
"""What reads thousands of rows, where a command reads one."""

LISTINGS_MAX: Final = 1
"""How many of these a turn takes of each tenant."""

_BEGINNINGS: Final = frozenset({Reserve, Accept, Dispatch, Get, FindOperation, *LISTINGS})
"""What may be refused for having waited, or because others have: nothing was begun, and asking again costs nothing."""

_ENDINGS: Final = frozenset({Commit, Release, Extend, Doubt})
"""What an attempt under way depends on."""

_MS_PER_S: Final = 1_000

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


def may_be_left(command: Command | Query) -> bool:
    """Whether its shard has to know that its caller left: it may take a while, or it is dear and read for nobody."""
    return waits(command) or type(command) in LISTINGS


def tenant_of(envelope: Envelope) -> str:
    """Whose line it stands in; what no tenant asks, the server's own questions, has one to itself."""
    command = envelope.command
    if isinstance(command, ListRecords | ListIncidents | ListStuck | Acknowledge | Take | FindOperation):
        return command.tenant or ""
    return "" if isinstance(command, Query) else command.identity.tenant


class _Line:
    """What waits of one tenant, in order, and since when."""

    __slots__ = ("_arrivals", "_listings", "_spared", "_waiting")

    def __init__(self) -> None:
        self._listings = 0
        self._waiting: deque[Envelope] = deque()
        self._spared: deque[Envelope] = deque()
        # (time, how many came then), as many as wait but for what was spared.
        self._arrivals: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._spared) + len(self._waiting)

    def __iter__(self) -> Iterator[Envelope]:
        yield from self._spared
        yield from self._waiting

    def add(self, envelope: Envelope, now: float) -> None:
        """It came, and is the last."""
        count = self._arrivals.pop()[1] if self._arrivals and self._arrivals[-1][0] == now else 0
        self._arrivals.append((now, count + 1))
        self._waiting.append(envelope)
        self._listings += type(envelope.command) in LISTINGS

    def take(self, limit: int) -> list[Envelope]:
        """The first, at most ``limit``, and no more than up to the first listing beyond ``LISTINGS_MAX``.

        Those whose callers have left are none: nobody reads for them.
        """
        if self._listings > LISTINGS_MAX:
            limit = self._before_too_many(limit)
        taken = self._take(limit)
        if self._listings:
            self._listings -= _listings_in(taken)
        return taken

    def _before_too_many(self, limit: int) -> int:
        found = 0
        for count, envelope in enumerate(itertools.islice(self, limit)):
            found += type(envelope.command) in LISTINGS and not envelope.closed
            if found > LISTINGS_MAX:
                return count
        return limit

    def _take(self, limit: int) -> list[Envelope]:
        spared = [self._spared.popleft() for _ in range(min(limit, len(self._spared)))]
        return [*spared, *self._pop(min(limit - len(spared), len(self._waiting)))]

    def put_back(self, envelopes: Sequence[Envelope]) -> None:
        """They were taken, in this order, and are the first again; they came in time, and are not refused any more."""
        self._spared.extendleft(reversed(envelopes))
        self._listings += _listings_in(envelopes)

    def take_late(self, came_before: float) -> list[Envelope]:
        """What came before that time and may be refused; the rest of it is the first to be taken now."""
        refused: list[Envelope] = []
        while self._arrivals and self._arrivals[0][0] < came_before:
            for envelope in self._pop(self._arrivals[0][1]):
                (refused if type(envelope.command) in _BEGINNINGS else self._spared).append(envelope)
        self._listings -= _listings_in(refused)
        return refused

    def _pop(self, count: int) -> list[Envelope]:
        left = count
        while left:
            came_at, several = self._arrivals.popleft()
            if several > left:
                self._arrivals.appendleft((came_at, several - left))
            left -= min(several, left)
        return [self._waiting.popleft() for _ in range(count)]


def _listings_in(envelopes: Sequence[Envelope]) -> int:
    return sum(type(envelope.command) in LISTINGS for envelope in envelopes)


@dataclass(slots=True)
class _Overload:
    """A tenant asked for more than there is room for, and more than nothing of it waits ever since.

    Attributes:
        since: When counting began.
        taken: How many of its envelopes were taken since then.
        bound: How many may wait: as many as are taken in half of the time that they may wait.
    """

    since: float
    bound: int
    taken: int = 0

    def count(self, taken: int, now: float, queue_s: float, size_max: int) -> None:
        """So many were taken."""
        self.taken += taken
        passed = now - self.since
        if passed >= queue_s * MEASURED_SHARE:
            self.bound = min(size_max, max(BOUND_MIN, int(self.taken * queue_s / 2 / passed)))
            self.since, self.taken = now, 0


class Mailbox:
    """A bounded queue with one reader. What does not fit is refused at once instead of queueing without bound.

    As long as one turn takes all that waits, it is a queue. When more waits, each tenant has a line of its own and the
    lines take turns, so that whoever asks without measure holds up itself; the order within a tenant, and so of a key,
    stays. The bound is a tenant's: there are as many lines as the configuration has tenants.

    A tenant for whose envelopes there was no room is overloaded, until its line is empty. As long as it is, time is
    bounded as well: only as many may wait as are carried out in half of ``queue_ms``, and what waited for all of it and
    would only begin something is refused instead of being carried out late. The end of an attempt is never late, and
    has room where nothing else has: others may wait for it.

    Args:
        size_max: How many envelopes of one tenant may wait.
        queue_ms: How long an envelope of an overloaded tenant may wait, milliseconds.
        now: The time, seconds.

    Attributes:
        pressing: Whether something waits of somebody of whom nothing waited, beside much of somebody else.
    """

    def __init__(
        self,
        size_max: int,
        queue_ms: int = limits.QUEUE_MS_DEFAULT,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self._queue: deque[Envelope] = deque()
        self._lines: dict[str, _Line] = {}
        self._in_lines = 0
        self._overloads: dict[str, _Overload] = {}
        self.pressing = False
        self._listings = 0
        self._size_max = size_max
        self._queue_s = queue_ms / _MS_PER_S
        self._now = now
        self._reader: trio.lowlevel.Task | None = None
        self._rung = False
        self._timer = Timer(self.ring)

    def __len__(self) -> int:
        return len(self._queue) + self._in_lines

    def __iter__(self) -> Iterator[Envelope]:
        """What waits, line by line."""
        for line in self._lines.values():
            yield from line
        yield from self._queue

    def put(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Take as many as there is room for, in order; returns those that were not taken."""
        refused: list[Envelope] = []
        if not self._lines and not self._overloads and len(self._queue) + len(envelopes) <= self._size_max:
            self._queue.extend(envelopes)
            if len(envelopes) == 1:
                # A question comes alone.
                self._listings += type(envelopes[0].command) in LISTINGS
        else:
            now = self._now()
            self._sort(now)
            refused.extend(envelope for envelope in envelopes if not self._line_up(envelope, now))
        if len(refused) < len(envelopes):
            self.ring()
        return refused

    def take(self, limit: int) -> list[Envelope]:
        """The next envelopes, at most ``limit``."""
        queue = self._queue
        if not self._lines and len(queue) <= limit and self._listings <= LISTINGS_MAX:
            self.pressing = False
            self._listings = 0
            taken = list(queue)
            queue.clear()
            return taken
        now = self._now()
        self._sort(now)
        return self._take_turns(limit, now)

    def put_back(self, envelopes: Sequence[Envelope]) -> None:
        """Have at the head of their lines again what was taken last and cannot be dealt with yet.

        The tenant of the first of them has had its turn, and is the last; the others are the first.

        Args:
            envelopes: The end of what ``take`` gave, at least one.
        """
        self._sort(self._now())
        by_tenant: dict[str, list[Envelope]] = {}
        for envelope in envelopes:
            by_tenant.setdefault(tenant_of(envelope), []).append(envelope)
        last, *first = by_tenant
        for tenant, mine in by_tenant.items():
            line, overload = self._line_of(tenant), self._overloads.get(tenant)
            if overload is not None:
                overload.taken -= len(mine)
            if tenant and tenant != last and not line:
                self.pressing = True
            line.put_back(mine)
        self._in_lines += len(envelopes)
        self._lines = {tenant: self._lines[tenant] for tenant in (*first, *self._lines)}
        self._lines[last] = self._lines.pop(last)

    def take_late(self) -> list[Envelope]:
        """What has waited in a line for too long and is to be refused."""
        late: list[Envelope] = []
        if self._overloads:
            came_before = self._now() - self._queue_s
            for tenant in self._overloads.keys() & self._lines.keys():
                line = self._lines[tenant]
                late.extend(line.take_late(came_before))
                if not line:
                    del self._lines[tenant]
            self._in_lines -= len(late)
        return late

    def _sort(self, now: float) -> None:
        """Bring what came into the lines; it fitted when it came, which was after the latest turn began."""
        for envelope in self._queue:
            self._line_of(tenant_of(envelope)).add(envelope, now)
        self._in_lines += len(self._queue)
        self._queue.clear()
        self._listings = 0

    def _line_of(self, tenant: str) -> _Line:
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line()
        return line

    def _line_up(self, envelope: Envelope, now: float) -> bool:
        tenant = tenant_of(envelope)
        line, overload = self._line_of(tenant), self._overloads.get(tenant)
        bound = self._size_max if overload is None else overload.bound
        if len(line) >= bound * (ENDINGS_SHARE if type(envelope.command) in _ENDINGS else 1):
            if overload is None:
                self._overloads[tenant] = _Overload(now, bound)
            return False
        if tenant and not line and len(self._lines) > 1:
            self.pressing = True
        line.add(envelope, now)
        self._in_lines += 1
        return True

    def _take_turns(self, limit: int, now: float) -> list[Envelope]:
        """As many from each line as long as there are any: who asks for little is not held up by who asks for much."""
        taken: list[Envelope] = []
        had_theirs: dict[str, _Line] = {}
        self.pressing = False
        while self._lines and len(taken) < limit:
            share = max(1, (limit - len(taken)) // len(self._lines))
            for tenant in list(self._lines)[: limit - len(taken)]:
                line = self._lines.pop(tenant)
                mine = line.take(share)
                taken.extend(mine)
                if line:
                    # What comes next is a listing too many for this turn, or there was no room for more.
                    (had_theirs if len(mine) < share else self._lines)[tenant] = line
                    if self._overloads and tenant in self._overloads:
                        self._overloads[tenant].count(len(mine), now, self._queue_s, self._size_max)
                else:
                    self._overloads.pop(tenant, None)
        self._lines.update(had_theirs)
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
