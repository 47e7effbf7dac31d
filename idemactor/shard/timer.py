"""A timer that is moved far more often than it rings.

A cancel scope around every wait costs more than the wait. A shard's alarm is nearly always later than the one it was
set to before, so that setting it is a comparison, and one task of its own sleeps until the earliest time that was
asked for. What it then rings for may have moved: whoever is woken looks at the time and sets it anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio


class Timer:
    """Calls ``ring`` at the latest when it is time.

    Args:
        ring: Must neither block nor raise.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at = math.inf
        self._scope: trio.CancelScope | None = None

    def set(self, at: float) -> None:
        """Ring not later than ``at``, by trio's clock, seconds; a ring that was asked for earlier still comes."""
        if at < self._at:
            self._at = at
            if self._scope is not None:
                self._scope.deadline = at

    async def run(self) -> None:
        """Ring until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._at) as self._scope:
                await trio.sleep_forever()
            self._at = math.inf
            self._ring()
