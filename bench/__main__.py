"""``python -m bench``: measure the server beside the disk it stands on. QUICK=1 takes a fraction of the time."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from bench import harness, report
from bench.harness import Subject
from bench.server import running
from bench.subjects import disk, rpc

RESULTS: Final = Path(__file__).parent / "results"
SHARDS: Final = 4
LOADS: Final = ((1, 1), (32, 1), (8, 64))
"""(connections, calls in flight on each)"""


def main() -> None:
    """Run every subject in turn and write the figures."""
    quick = os.environ.get("QUICK") == "1"
    repetitions, seconds, warm_up_s = (3, 1.0, 0.5) if quick else (7, 4.0, 1.0)
    # Beside the results and not in /tmp, which is often a memory disk that syncs for nothing.
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as scratch, running(Path(scratch) / "data", shards=SHARDS) as server:
        subjects = [Subject("fdatasync of one small write", partial(disk.measure, Path(scratch)))]
        for connections, in_flight in LOADS:
            name = f"RPC reserve, {connections} connections x {in_flight} in flight, {SHARDS} shards"
            subjects.append(Subject(name, partial(rpc.measure, server, connections, in_flight)))
        results = harness.run(subjects, repetitions=repetitions, seconds=seconds, warm_up_s=warm_up_s)
    print(report.write(results, RESULTS))


if __name__ == "__main__":
    main()
