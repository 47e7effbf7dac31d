"""The physical limit: a write and its fdatasync, on the file system that holds everybody's data."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Final

from bench.harness import Section, Subject, run, sample_of
from bench.plan import Bench

WRITE_BYTES: Final = 512
"""About what one record takes."""

BATCHES: Final = (1, 32, 512)
"""Records that share one write and one sync."""


def measure(bench: Bench) -> Section:
    """One small write, and batches; operations are records."""
    subjects = []
    for batch in BATCHES:
        name = f"write of {batch} x {WRITE_BYTES} bytes and fdatasync"
        subjects.append(Subject(f"disk/{batch}", name, partial(append, bench.scratch, batch)))
    section = Section("disk", "The physical limit", run(subjects, bench.plan.rounds))
    section.notes.append("Operations are records; latencies are those of one write and its sync.")
    return section


def append(directory: Path, batch: int, seconds: float) -> dict[str, float]:
    """Append and sync, one after the other, for ``seconds``."""
    path = directory / "fdatasync"
    block = os.urandom(WRITE_BYTES * batch)
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
    figures = sample_of(latencies, now - started)
    figures["ops_per_s"] *= batch
    return figures
