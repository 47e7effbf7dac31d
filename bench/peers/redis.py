"""Redis with ``appendfsync always``: a write is on disk before its answer leaves."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bench.load.protocols import LEASE_MS
from bench.peers.install import program
from bench.processes import accepts, free_port, output_of, running, wait_until

Fsync = Literal["always", "everysec"]

CALLS_FIRST: Final = 2_000
"""redis-benchmark counts calls, not seconds: so many tell how many a repetition needs."""

KEY_SPACE: Final = 2_000_000_000
"""redis-benchmark keeps it in 31 bits: a larger one becomes a small one, whose keys are soon all taken."""


@dataclass(slots=True)
class Redis:
    """A Redis server that runs."""

    port: int
    pid: int
    rates: dict[tuple[int, int], float] = field(default_factory=dict)
    """Calls a second as last measured, by connections and calls in flight."""

    @property
    def address(self) -> str:
        """For a load generator."""
        return f"127.0.0.1:{self.port}"

    def benchmark(self, connections: int, in_flight: int, seconds: float) -> dict[str, float]:
        """``SET key token NX PX`` of new keys by redis-benchmark, for about ``seconds``."""
        calls = int(max(CALLS_FIRST, self.rates.get((connections, in_flight), 0.0) * seconds))
        command = [str(program("redis-benchmark")), "-h", "127.0.0.1", "-p", str(self.port), "--csv"]
        command += ["-c", str(connections), "-P", str(in_flight), "-n", str(calls), "-r", str(KEY_SPACE)]
        command += ["SET", "key:__rand_int__", "token", "NX", "PX", str(LEASE_MS)]
        row = next(csv.DictReader(io.StringIO(output_of(command))))
        self.rates[connections, in_flight] = float(row["rps"])
        return {
            "ops_per_s": float(row["rps"]),
            "p50_ms": float(row["p50_latency_ms"]),
            "p99_ms": float(row["p99_latency_ms"]),
        }


@contextlib.contextmanager
def redis(directory: Path, fsync: Fsync = "always") -> Iterator[Redis]:
    """Start a Redis on ``directory`` and stop it in the end.

    Raises:
        BenchError: It cannot be installed or did not come up.
    """
    directory.mkdir()
    port, log = free_port(), directory / "log"
    command = [str(program("redis-server")), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    # Snapshots and rewrites would only disturb it; the append-only file is what makes it durable.
    command += ["--appendonly", "yes", "--appendfsync", fsync, "--save", "", "--auto-aof-rewrite-percentage", "0"]
    with running(command, log=log) as process:
        wait_until(lambda: accepts(port), process, log)
        yield Redis(port, process.pid)
