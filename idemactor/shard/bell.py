"""Rung when there is something in an outbox: wakes the relay, and services that wait for work.

A ring says that it is worth looking, and nothing else: what is there is asked of the shards. So a ring may be lost or
come twice; whoever waits also looks now and then without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import trio

from idemactor.core.outbox import LineKey
from idemactor.core.outboxes import Outboxes

Rung: TypeAlias = Callable[[str], None]
"""Called with a namespace."""
LinesMoved: TypeAlias = Callable[[int, Sequence[LineKey]], None]
"""Called with the number of a shard, and the lines whose head ended in it."""


class Bell:
    """One for all shards of a process.

    Attributes:
        on_ring: Passes a ring on to the other processes of the server; None: there are none.
        on_moved: Tells all other shards that a line moved; None: there are none.
    """

    def __init__(self) -> None:
        self.on_ring: Rung | None = None
        self.on_moved: LinesMoved | None = None
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, trio.Event] = {}

    def announce(self, shard: int, outbox: Outboxes) -> None:
        """Ring for what changed in a shard's outbox; only once that is durable."""
        if not (outbox.moves.namespaces or outbox.moves.lines):
            return
        moves = outbox.take_moves()
        for namespace in moves.namespaces:
            self.ring(namespace)
        if moves.lines and self.on_moved is not None:
            self.on_moved(shard, moves.lines)

    def ring(self, namespace: str) -> None:
        """Wake everybody who waits for something of this namespace, in every process."""
        self.hear(namespace)
        if self.on_ring is not None:
            self.on_ring(namespace)

    def hear(self, namespace: str) -> None:
        """As ``ring``, in this process alone: the bell rang in another one."""
        self._counts[namespace] = self.count(namespace) + 1
        waiting = self._waiting.pop(namespace, None)
        if waiting is not None:
            waiting.set()

    def count(self, namespace: str) -> int:
        """How often it rang: ask before looking, and give it to ``wait``, so that no ring between the two is lost."""
        return self._counts.get(namespace, 0)

    async def wait(self, namespace: str, timeout_s: float, since: int | None = None) -> None:
        """Wait for a ring that came after ``since``, at most so long.

        Args:
            namespace: Whose.
            timeout_s: Seconds.
            since: What ``count`` said before the caller looked; None: only a ring from now on counts.
        """
        if since is not None and self.count(namespace) != since:
            await trio.lowlevel.checkpoint()
            return
        event = self._waiting.get(namespace)
        if event is None:
            event = self._waiting[namespace] = trio.Event()
        with trio.move_on_after(timeout_s):
            await event.wait()
