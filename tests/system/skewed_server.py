"""``idemactor`` on a machine whose wall clock is wrong: ``CLOCK_AHEAD_MS`` is added to it."""

from __future__ import annotations

import os
import time
from typing import Final

from idemactor.cli.main import main

CLOCK_AHEAD_MS: Final = "CLOCK_AHEAD_MS"

if __name__ == "__main__":
    ahead_ns = int(os.environ[CLOCK_AHEAD_MS]) * 1_000_000
    wall_ns = time.time_ns
    time.time_ns = lambda: wall_ns() + ahead_ns
    main(prog_name="idemactor")
