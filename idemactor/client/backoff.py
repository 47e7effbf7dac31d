"""Doubling waits between attempts, with a share of chance so that many callers do not come back in step."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.02
LONGEST_S: Final = 1.0


class Backoff:
    """The waits of one series of attempts."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """How long to wait now, seconds: between half of a doubling wait and all of it."""
        wait_s = self._next_s
        self._next_s = min(wait_s * 2, LONGEST_S)
        return wait_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It worked: the next series starts from the beginning."""
        self._next_s = FIRST_S
