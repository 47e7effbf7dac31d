"""The shard's time: the wall clock when the process started, carried on by a clock that nobody can set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

EARLIEST_MS: Final = 1_735_689_600_000
"""2025-01-01T00:00:00Z, before which nobody can have run this: milliseconds since the epoch."""


class ClockTooFarBehind(ValueError):
    """The wall clock is so far behind the latest time on disk that one of them must be wrong."""

    def __init__(self, behind_ms: int) -> None:
        super().__init__(f"the wall clock is {behind_ms} ms behind the latest time on disk")
        self.behind_ms = behind_ms


class ClockNotSet(ValueError):
    """The wall clock shows a time before this program was written: nobody has set it since the machine started."""


class Clock:
    """Milliseconds since the epoch, UTC, that never go back.

    Args:
        start_ms: The time when ``monotonic_s`` gave what it gives now.
        monotonic_s: Seconds of a clock that only runs forward.
    """

    def __init__(self, start_ms: int, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._origin_ms = start_ms - monotonic_s() * 1000

    def now_ms(self) -> int:
        """The time, milliseconds since the epoch."""
        return int(self._origin_ms + self._monotonic_s() * 1000)

    def now_us(self) -> int:
        """The time, microseconds since the epoch."""
        return int((self._origin_ms + self._monotonic_s() * 1000) * 1000)


def start_time(wall_ms: int, latest_ms: int, backstep_max_ms: int) -> int:
    """The time to start a clock with: nothing that ended before a restart is alive again after it.

    Args:
        wall_ms: The wall clock, milliseconds since the epoch.
        latest_ms: The latest time on disk.
        backstep_max_ms: How far the wall clock may be behind.

    Raises:
        ClockNotSet: It shows a time before ``EARLIEST_MS``. What is granted then would all end at once when somebody
            sets it and starts again, and with it the memory of what was done.
        ClockTooFarBehind: It is further behind: going on from the disk's time would keep every lease and record
            alive for longer than anybody asked for.
    """
    if wall_ms < EARLIEST_MS:
        raise ClockNotSet
    if latest_ms - wall_ms > backstep_max_ms:
        raise ClockTooFarBehind(latest_ms - wall_ms)
    return max(wall_ms, latest_ms)


class Sequencer:
    """Places in line for what enters the outbox: microseconds since the epoch, none of them twice.

    All shards of a process share one. Between the processes of a server the clock says who was first: an answer takes
    longer to reach whoever asks next than it may be ahead, a microsecond for each process. Each gives places of its own
    only, for of two in the same place neither would stand behind the other.

    Args:
        now_us: The time, microseconds since the epoch, on a clock that never goes back.
        process: The number of this process among those of the server.
        processes: How many there are.
    """

    def __init__(self, now_us: Callable[[], int], process: int = 0, processes: int = 1) -> None:
        self._now_us = now_us
        self._process = process
        self._processes = processes
        self._last = 0

    def next(self) -> int:
        """A place behind every other one."""
        first = max(self._now_us(), self._last + 1)
        self._last = first + (self._process - first) % self._processes
        return self._last

    def observe(self, seq: int) -> None:
        """This one was given before a restart."""
        self._last = max(self._last, seq)
