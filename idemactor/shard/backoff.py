"""A doubling wait, for what failed and may have passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BACKOFF_MS_MIN: Final = 100
BACKOFF_MS_MAX: Final = 30_000


@dataclass(slots=True)
class Backoff:
    """When to try again.

    Attributes:
        wait_ms: How long the next failure makes us wait, milliseconds.
        until_ms: The end of the present wait, milliseconds since the epoch.
    """

    wait_ms: int = BACKOFF_MS_MIN
    until_ms: int = 0

    def fail(self, now: int) -> int:
        """It failed at ``now``; returns how long to wait, milliseconds."""
        waits = self.wait_ms
        self.until_ms = now + waits
        self.wait_ms = min(waits * 2, BACKOFF_MS_MAX)
        return waits

    def reset(self) -> None:
        """It went well."""
        self.wait_ms, self.until_ms = BACKOFF_MS_MIN, 0
