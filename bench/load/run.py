"""Running load generators, as many processes as the load has room for, and adding up what they saw."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Final

from bench.harness import latencies_ms
from bench.load.spec import Outcome, Spec
from bench.processes import TAIL_CHARS, BenchError, cpu_s, die_with_parent

PROCESSES: Final = max(1, (os.cpu_count() or 2) - 1)
"""One core is the server's; a generator on the same core would measure itself."""


def measure(spec: Spec, server_pid: int, seconds: float) -> dict[str, float]:
    """Carry out a load and return its figures.

    Args:
        spec: Connections and rate are shared out among the processes.
        server_pid: Whose CPU time to count beside it.
        seconds: For how long, whatever the load says.

    Raises:
        BenchError: A generator failed, or the server refused or did not answer calls of a closed load.
    """
    before = cpu_s(server_pid)
    outcomes = carry_out(replace(spec, seconds=seconds))
    used = cpu_s(server_pid) - before
    if spec.rate == 0 and any(outcome.refused or outcome.unanswered for outcome in outcomes):
        raise BenchError(f"{spec}: {[(outcome.refused, outcome.unanswered) for outcome in outcomes]} went wrong")
    answered = sum(len(outcome.latencies_s) for outcome in outcomes)
    figures = {"ops_per_s": sum(outcome.in_time / outcome.seconds for outcome in outcomes)}
    figures |= latencies_ms(latency for outcome in outcomes for latency in outcome.latencies_s)
    figures["generator_busy"] = max(outcome.cpu_s / outcome.seconds for outcome in outcomes)
    if answered:
        figures["server_cpu_s_per_million"] = used / answered * 1e6
    if spec.rate > 0:
        figures["offered_per_s"] = spec.rate
        figures["refused"] = sum(outcome.refused + outcome.unanswered for outcome in outcomes)
    return figures


def carry_out(spec: Spec) -> list[Outcome]:
    """Run the generators of a load; returns what each of them saw.

    Raises:
        BenchError: One failed.
    """
    processes = min(PROCESSES, spec.connections)
    running = []
    for index in range(processes):
        connections = spec.connections // processes + (index < spec.connections % processes)
        part = replace(spec, connections=connections, rate=spec.rate / processes)
        command = [sys.executable, "-m", "bench.load.generator", part.to_json()]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, preexec_fn=die_with_parent))
    said = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, said, strict=True):
        if process.returncode != 0:
            raise BenchError(f"a load generator failed: {errors.decode(errors='replace')[-TAIL_CHARS:]}")
    return [Outcome.from_bytes(output) for output, _ in said]
