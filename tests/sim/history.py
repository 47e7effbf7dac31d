"""What callers sent and were told in one run of the simulator: all that most checkers ever see."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import trio

from idemactor.core.commands import Command
from idemactor.core.keys import Identity
from idemactor.core.policy import Policy
from idemactor.core.replies import Overloaded, Reply, Unavailable
from idemactor.shard.mailbox import Answer


@dataclass(eq=False)
class Op:
    """One command, and the sink of its answer.

    Attributes:
        sent: When it was sent; stamps are one order over everything that callers did and saw.
        answered: When its answer came or its connection broke; None: not yet.
        reply: None where the connection broke first.
        policy: The settings of the node that it was sent to.
        seen: Whether a shard has begun to decide it.
        at: The server's time of the decision that was answered, or of the latest that may have had an effect.
        remote: Whether it was passed on to another worker: then it may have its effect after its connection broke, and
            ``at`` is the time of its decision, whenever that was.
        decided: The place in the order of things of its decision, where it is remote.
        via: The worker that it was sent to, where there are several.
    """

    command: Command
    sent: int
    policy: Policy
    shard: int
    history: History
    answered: int | None = None
    reply: Reply | None = None
    seen: bool = False
    at: int | None = None
    closed: bool = False
    broken_off: bool = False
    remote: bool = False
    decided: int | None = None
    via: object = None
    done: trio.Event = field(default_factory=trio.Event)

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Note the answer; a second one breaks the promise that each call has one."""
        if self.broken_off:
            # What a process still had to say when it died reaches nobody.
            return
        ((_, answer),) = answers
        assert isinstance(answer, Reply)
        if self.reply is not None:
            self.history.violations.append(f"answered twice: {self} {answer}")
        self.reply = answer
        self._end()

    def break_off(self) -> None:
        """The node died: what became of the command is anybody's guess."""
        if self.answered is None:
            self.broken_off = True
            self._end()

    def _end(self) -> None:
        self.answered = self.history.stamp()
        if not self.remote:
            self.at = self.history.deciding_ms.get(self.shard) if self.seen else None
        self.done.set()

    @property
    def until(self) -> float:
        """The place in the order of things by which it had its effect."""
        end = self.decided if self.remote and self.vague else self.answered
        return math.inf if end is None else end

    @property
    def vague(self) -> bool:
        """Whether nobody was told what became of it."""
        return self.reply is None or isinstance(self.reply, Unavailable)

    @property
    def idle(self) -> bool:
        """Whether it certainly had no effect."""
        return isinstance(self.reply, Overloaded) or (self.vague and self.at is None)

    def __repr__(self) -> str:
        return f"[{self.sent}..{self.answered} at {self.at}] {self.command} -> {self.reply}"


@dataclass
class History:
    """Every op of a run, and what the world itself saw go wrong."""

    ops: list[Op] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    deciding_ms: dict[int, int] = field(default_factory=dict)
    _stamps: itertools.count[int] = field(default_factory=itertools.count)

    def stamp(self) -> int:
        """The next place in the order of things."""
        return next(self._stamps)

    def begin(self, command: Command, policy: Policy, shard: int) -> Op:
        """A caller sends a command."""
        op = Op(command, self.stamp(), policy, shard, self)
        self.ops.append(op)
        return op

    def by_key(self) -> dict[Identity, list[Op]]:
        """The ops of each key, in the order in which they were sent."""
        keys: dict[Identity, list[Op]] = {}
        for op in self.ops:
            keys.setdefault(op.command.identity, []).append(op)
        return keys
