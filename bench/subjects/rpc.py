"""What the server can take over RPC: reserves of new keys, by a load generator in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from bench.harness import Sample, sample_of
from bench.server import Server


def measure(server: Server, connections: int, in_flight: int, seconds: float) -> Sample:
    """Load ``server`` for ``seconds`` with ``connections``, each with ``in_flight`` calls under way."""
    command = [sys.executable, "-m", "bench.rpc_load", server.rpc, "--connections", str(connections)]
    command += ["--in-flight", str(in_flight), "--seconds", str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    return sample_of(report["latencies_s"], report["seconds"])
