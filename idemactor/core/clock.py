"""The shard's time: the wall clock when the process started, carried on by a clock that nobody can set."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Milliseconds since the epoch, UTC, that never go back.

    Args:
        start_ms: The time when ``monotonic_s`` gave what it gives now: the later of the wall clock and of the latest
            time on disk, so that nothing that ended before a restart is alive again after it.
        monotonic_s: Seconds of a clock that only runs forward.
    """

    def __init__(self, start_ms: int, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._origin_ms = start_ms - monotonic_s() * 1000

    def now_ms(self) -> int:
        """The time, milliseconds since the epoch."""
        return int(self._origin_ms + self._monotonic_s() * 1000)
