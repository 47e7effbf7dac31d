"""``idemactor`` on a machine whose clocks a test sets while it runs.

The file of ``CLOCKS`` has two numbers: what is added to the wall clock, and how long the machine was suspended, both
in seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from idemactor.cli.main import main

CLOCKS: Final = "TEST_CLOCKS"


def _numbers() -> tuple[int, int]:
    wall_s, suspended_s = Path(os.environ[CLOCKS]).read_text().split()
    return int(wall_s), int(suspended_s)


if __name__ == "__main__":
    wall_ns, wall, read_clock = time.time_ns, time.time, time.clock_gettime
    time.time_ns = lambda: wall_ns() + _numbers()[0] * 1_000_000_000
    time.time = lambda: wall() + _numbers()[0]

    def clock_gettime(which: int, /) -> float:
        # CLOCK_MONOTONIC stands still while a machine sleeps, CLOCK_BOOTTIME does not (clock_gettime(2)).
        return read_clock(which) + (_numbers()[1] if which == time.CLOCK_BOOTTIME else 0)

    time.clock_gettime = clock_gettime
    main(prog_name="idemactor")
