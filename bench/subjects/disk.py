"""The physical limit: one small write and its fdatasync, on the file system that holds the server's data."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from bench.harness import Sample, sample_of

WRITE_BYTES: Final = 512
"""About what one record takes."""


def measure(directory: Path, seconds: float) -> Sample:
    """Append ``WRITE_BYTES`` and sync, one after the other, for ``seconds``."""
    path = directory / "fdatasync"
    block = os.urandom(WRITE_BYTES)
    latencies: list[float] = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        started = time.perf_counter()
        now = started
        while now - started < seconds:
            os.write(descriptor, block)
            os.fdatasync(descriptor)
            latencies.append(time.perf_counter() - now)
            now += latencies[-1]
    finally:
        os.close(descriptor)
        path.unlink()
    return sample_of(latencies, now - started)
