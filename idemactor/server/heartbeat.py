"""Proof that this process turns: its event loop, and every one of its shards.

Whoever is told of a beat (a service manager's watchdog, the supervisor of several workers) may end a process that has
stopped beating. So a beat is never sent by a timer alone: each shard's bell is rung, and only when every one of them
has gone round once more is there a beat. A shard that is quarantined or out of memory goes round as well: a restart
would not mend its file, and takes the other shards away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

_MS_PER_S: Final = 1_000


class Turning(Protocol):
    """What has to turn."""

    @property
    def turns(self) -> int:
        """How often it went round."""

    def ring(self) -> None:
        """Make it go round once, though there may be nothing to do."""


class Heartbeat:
    """See above.

    Args:
        turning: The shards of this process.
        every_ms: How often there is a beat, milliseconds.
        beat: Is called for each. It must neither block nor raise.
    """

    def __init__(self, turning: Sequence[Turning], every_ms: int, beat: Callable[[], None]) -> None:
        self._turning = turning
        self._every_s = every_ms / _MS_PER_S
        self._beat = beat
        self._stopping = False

    def stopping(self) -> None:
        """Shards end from now on, one after the other: that the loop turns is all that can be asked."""
        self._stopping = True

    async def run(self) -> None:
        """Beat until cancelled."""
        marks = self._ring()
        while True:
            await trio.sleep(self._every_s)
            if self._stopping or all(shard.turns != mark for shard, mark in marks):
                self._beat()
                marks = self._ring()

    def _ring(self) -> list[tuple[Turning, int]]:
        """Ring for all; how often each had gone round before."""
        marks = [(shard, shard.turns) for shard in self._turning]
        for shard, _ in marks:
            shard.ring()
        return marks
