"""``python -m bench``: measure the server beside the disk it stands on and what people use instead.

QUICK=1 takes a fraction of the time. Arguments name sections to measure instead of all. BENCH_DIR is a folder on the
disk to measure, where that is not the one of /var/tmp.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench import evidence, plots, report
from bench.harness import Section
from bench.plan import FULL, QUICK, Bench, Plan
from bench.processes import BenchError
from bench.subjects import (
    decision,
    disk,
    durability,
    expiry,
    gateway,
    growth,
    hot_shard,
    http,
    open_loop,
    outbox,
    rpc,
    service,
    workers,
)

RESULTS: Final = Path(__file__).parent / "results"
SCRATCH_DEFAULT: Final = Path("/var/tmp")
"""Not /tmp, which is often a memory disk that syncs for nothing."""

SECTIONS: Final[Mapping[str, Callable[[Bench], Section]]] = {
    "disk": disk.measure,
    "decision": decision.measure,
    "rpc": rpc.measure,
    "http": http.measure,
    "service": service.measure,
    "gateway": gateway.measure,
    "outbox": outbox.measure,
    "open": open_loop.measure,
    "hot": hot_shard.measure,
    "workers": workers.measure,
    "durability": durability.measure,
    "expiry": expiry.measure,
    # Last: what it leaves out depends on how long the others took.
    "growth": growth.measure,
}


def main() -> None:
    """Run the sections that the command line names, all of them without names, and write the results."""
    plan = QUICK if os.environ.get("QUICK") == "1" else FULL
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Who is stopped like this also has peers to stop, as with Ctrl-C.
        signal.signal(number, lambda given, _: sys.exit(128 + given))
    unknown = set(sys.argv[1:]) - SECTIONS.keys()
    if unknown:
        sys.exit(f"there is no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    # What is shown is a whole run; a part of one goes beside it.
    results = RESULTS / "part" if sys.argv[1:] else RESULTS
    with scratch() as folder:
        bench = run(plan, folder, sys.argv[1:] or list(SECTIONS), results)
    plots.draw(bench.sections, results)
    print(report.markdown(bench))
    if bench.missing:
        sys.exit(f"not measured: {', '.join(bench.missing)}")


def run(plan: Plan, folder: Path, sections: Sequence[str], results: Path) -> Bench:
    """Measure ``sections`` with everything in ``folder`` and write what came of it to ``results``."""
    bench = Bench(plan, folder)
    with ExitStack() as stack:
        if plan.peers:
            bench.start_peers(stack)
            _show(bench)
        for name in sections:
            print(f"{bench.elapsed_s():5.0f} s  {name}", file=sys.stderr)
            try:
                bench.sections.append(SECTIONS[name](bench))
            except BenchError as error:
                # Half an hour of the other sections is worth having.
                bench.missing[f"Section {name}"] = str(error)
            report.write(bench, results)
    return bench


def _show(bench: Bench) -> None:
    """That the peer whose settings say nothing about syncs syncs all the same."""
    try:
        bench.evidence["workerd syncs before it answers"] = evidence.of_durable_object(bench.scratch / "traced")
    except BenchError as error:
        bench.evidence["workerd was not traced"] = str(error)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on a disk, that others may pass through (PostgreSQL runs as nobody) but not read; removed in the end."""
    parent = Path(os.environ.get("BENCH_DIR", SCRATCH_DEFAULT))
    with tempfile.TemporaryDirectory(prefix="idemactor-bench-", dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


if __name__ == "__main__":
    main()
