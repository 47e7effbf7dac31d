"""What answers take in memory that nobody has read yet: counted for all doors of a process together, and bounded.

An answer is small but for the outcome that it may carry. Who asks for outcomes and does not read them is given one at
a time, then none; who reads is given his until there is no memory for anybody's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import trio

from idemactor.core.queries import IncidentsPage
from idemactor.core.record import Outcome
from idemactor.core.replies import Completed, Overloaded, Untold, Watched, outcome_of
from idemactor.shard.mailbox import OVERLOADED_RETRY_MS, Answer
from idemactor.wire.fields import Dialect
from idemactor.wire.outcomes import cost_in

UNREAD_BYTES_ALL: Final = 128 * 1024 * 1024
"""The most that may wait for all clients of the process together; beyond it each gets one answer at a time, until its
write deadline ends one that does not read. So those who read are served on, whoever else does not."""

CROWDED_SHARE: Final = 2
"""How many times as much has to wait until no outcome is kept any more for a client that has yet to read others, or
asks for many at once."""

FULL_SHARE: Final = 4
"""How many times as much has to wait until no outcome is told to anybody, so that very many clients that read nothing
but their first answer do not take all the memory there is."""

OUTCOME_BYTES_SMALL: Final = 1_024
"""An outcome of this size is always told: it takes hardly more than an answer without one."""

T = TypeVar("T")


def outcome_bytes(answer: Answer, dialect: Dialect = Dialect.MSGPACK) -> int:
    """What the outcomes of an answer take in memory, bytes, by an estimate; 0 where it has none, or a small one.

    Args:
        answer: A page of incidents is as large as its query said it would be sent.
        dialect: How it leaves: JSON writes many bytes as six.
    """
    if type(answer) is IncidentsPage:
        return answer.outcome_bytes if answer.outcome_bytes > OUTCOME_BYTES_SMALL else 0
    outcome = outcome_of(answer)
    if outcome is None:
        return 0
    cost = outcome.cost()
    if cost <= OUTCOME_BYTES_SMALL:
        return 0
    if dialect is Dialect.MSGPACK:
        return cost
    # How an operation ended stands in two places of its answer.
    return cost_in(dialect, outcome) * (2 if type(answer) is Watched else 1)


def without_outcomes(answers: list[tuple[T, Answer]]) -> list[tuple[T, Answer]]:
    """The same answers, but for those that carry more than a small outcome: nothing was changed by what they answer."""
    return [(tag, not_kept(answer) if outcome_bytes(answer) else answer) for tag, answer in answers]


def not_kept(answer: Answer, why: Untold = Untold.NOT_KEPT) -> Answer:
    """What is told in the place of an answer whose outcome there is no memory for.

    Who asks whether to go on is told that it was done before, if no more than that: some would go on where a server is
    overloaded. Only in a batch that is too large it is asked for again, since smaller ones get it all.
    """
    if isinstance(answer, Completed) and answer.outcome is not None and why is Untold.NOT_KEPT:
        return replace(answer, outcome=Outcome(answer.outcome.status, omitted=True))
    return Overloaded(OVERLOADED_RETRY_MS, why)


def _nobody(_answers: int) -> None:
    """Is told nothing."""


@dataclass(slots=True)
class Backlog:
    """What waits for the clients of all doors of a process.

    Attributes:
        waiting_bytes: How much it is, as it will be sent.
        held_bytes: The outcomes of answers that are not made yet: for want of room, or because others of the same
            batch are not there.
        bytes_max: With more as it will be sent, no client may keep more than one answer waiting.
        on_refused: Told how many answers were not kept. It must neither block nor raise.
        encoding: Whoever encodes a large answer, in steps: what is only half encoded is there twice.
    """

    waiting_bytes: int = 0
    held_bytes: int = 0
    bytes_max: int = UNREAD_BYTES_ALL
    on_refused: Callable[[int], None] = _nobody
    encoding: trio.Lock = field(default_factory=trio.Lock)

    @property
    def crowded(self) -> bool:
        """Whether nothing large is kept any more for a batch, or for who has not read what was there before."""
        return self.waiting_bytes + self.held_bytes > self.bytes_max * CROWDED_SHARE

    @property
    def full(self) -> bool:
        """Whether nothing large is told to anybody."""
        return self.waiting_bytes + self.held_bytes > self.bytes_max * FULL_SHARE

    def spared(self, answers: list[tuple[T, Answer]]) -> list[tuple[T, Answer]]:
        """As ``without_outcomes``, and counted."""
        kept = without_outcomes(answers)
        refused = sum(before[1] is not after[1] for before, after in zip(answers, kept, strict=True))
        if refused:
            self.on_refused(refused)
        return kept

    def refuse(self, answer: Answer, why: Untold = Untold.NOT_KEPT) -> Answer:
        """As ``not_kept``, and counted."""
        self.on_refused(1)
        return not_kept(answer, why)


@dataclass(slots=True)
class Hold:
    """What an answer counts for that is with neither a shard nor its client, but on its way.

    Attributes:
        backlog: Where it counts.
        dialect: How it leaves.
        held_bytes: How much it is.
    """

    backlog: Backlog
    dialect: Dialect
    held_bytes: int = 0

    def add(self, more_bytes: int) -> None:
        """So much more is on its way."""
        self.held_bytes += more_bytes
        self.backlog.held_bytes += more_bytes

    def sent(self, some_bytes: int) -> None:
        """So much of it counts elsewhere from here on."""
        self.add(-min(some_bytes, self.held_bytes))

    def abandon(self) -> None:
        """It counts no more."""
        self.sent(self.held_bytes)
