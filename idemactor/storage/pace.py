"""Whether the disk is fast enough to be waited for on the event loop.

A hop to a worker thread costs more than a write to a fast disk, and a slow disk on the event loop stops every shard.
So the disk is measured: a moving average with two thresholds, so that a disk between them does not flap. Only what the
disk takes counts, not what Python takes for the rows: a thread does not save that time, and adds to it.
"""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import Final, Literal

Threads = Literal["auto", "never", "always"]
"""Where work runs: as the disk's speed has it; on the event loop (tests with a mock clock); in a thread."""

SLOW_S: Final = 0.003
"""Above this average, seconds, work goes to a thread: the loop would stand still for longer than ten hops take."""
FAST_S: Final = 0.001
"""Below this average, seconds, it comes back: a hop would cost a good part of the write itself."""
STALL_S: Final = 0.1
"""One wait of this length is enough: the next may take seconds."""
SAMPLE_MAX_S: Final = 0.006
"""What one wait counts at most, so that a single hiccup neither flips the mode nor is remembered for long."""
WEIGHT: Final = 0.1
"""The weight of the newest measurement."""


def waited_s() -> float:
    """A clock, seconds, that stands still while this thread computes: what passes on it is waiting."""
    return perf_counter() - thread_time()


class Pace:
    """A moving average of waits. ``slow`` says where the next one belongs."""

    __slots__ = ("average_s", "slow")

    def __init__(self) -> None:
        self.average_s = 0.0
        self.slow = False

    def observe(self, seconds: float) -> None:
        """Take one measurement into account."""
        if seconds >= STALL_S:
            self.average_s = SAMPLE_MAX_S
        else:
            self.average_s += WEIGHT * (min(seconds, SAMPLE_MAX_S) - self.average_s)
        if self.average_s > SLOW_S:
            self.slow = True
        elif self.average_s < FAST_S:
            self.slow = False
