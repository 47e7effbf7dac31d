"""Random bits from the operating system, many draws at a time: a system call for each would cost more than the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from idemactor.core.ids import ENTROPY_BITS

DRAWS_AT_A_TIME: Final = 256

_DRAW_BYTES: Final = -(-ENTROPY_BITS // 8)
_SPARE_BITS: Final = -ENTROPY_BITS % 8


def system_entropy() -> Callable[[], int]:
    """A function that gives ``ENTROPY_BITS`` unpredictable bits at each call. Not for use on both sides of a fork."""
    return _draws().__next__


def _draws() -> Iterator[int]:
    while True:
        drawn = os.urandom(DRAWS_AT_A_TIME * _DRAW_BYTES)
        for start in range(0, len(drawn), _DRAW_BYTES):
            yield int.from_bytes(drawn[start : start + _DRAW_BYTES]) >> _SPARE_BITS
