"""Several workers beside one process: what a command costs that is sent to any worker, and to the owner of its key."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.harness import Sample, Section, Subject, latencies_ms, run
from bench.load import run as load
from bench.load.spec import Outcome, Spec
from bench.plan import SHARDS, Bench, Load
from bench.processes import BenchError, cpu_s
from bench.server import Server, serving
from idemactor.core.keys import Identity, identity_hash, shard_of, worker_of

WORKERS: Final = 2
KEYS_PER_S: Final = 40_000
"""More than a worker takes: the generator must not run out of keys."""

KEYS_MIN: Final = 10_000
TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server, the addresses of its workers and all its processes."""

    addresses: Sequence[str]
    pids: Sequence[int]


def measure(bench: Bench) -> Section:
    """One process and ``WORKERS``; of these with the connections at any worker, and at the owner of their keys."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(_served(bench, 1))
        several = stack.enter_context(_served(bench, WORKERS))
        subjects = []
        for given in bench.plan.side_loads:
            scaled = (given[0] * WORKERS, given[1])
            subjects.append(_subject("one process", "one", one, given))
            subjects.append(_subject(f"{WORKERS} workers, reached at any", "any", several, given))
            subjects.append(_subject(f"{WORKERS} workers, reached at any", "any", several, scaled))
            subjects.append(
                _subject(f"{WORKERS} workers, reached at the owner", "owner", several, scaled, bench.scratch)
            )
        section = Section("workers", "Several workers", run(subjects, bench.plan.rounds))
    section.notes.append(
        "Reserves of new keys over RPC; `server_cpu_s_per_million` is that of all the server's processes. Commands that"
        " share a sync and a turn of the loop cost less each: what one costs is to be compared at the same load"
        f" for each worker, which is {WORKERS} times the connections. This machine has {os.cpu_count()} cores, and the"
        " generators run on them too: where they all have to share, throughput says nothing about workers."
    )
    return section


@contextlib.contextmanager
def _served(bench: Bench, workers: int) -> Iterator[Served]:
    with serving(bench.scratch / f"workers-{workers}", shards=SHARDS, workers=workers) as server:
        yield Served(_addresses(server), [server.pid, *_children(server.pid)])


def _addresses(server: Server) -> list[str]:
    """Where each worker listens for itself; of one, where everybody does."""
    with urllib.request.urlopen(f"http://{server.http}/v1/shards", timeout=TIMEOUT_S) as answer:
        workers = json.load(answer)["workers"]
    return [worker["rpc"][0] for worker in workers]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _subject(says: str, short: str, served: Served, given: Load, keys: Path | None = None) -> Subject:
    connections, in_flight = given
    spec = Spec("rpc", "", "new", connections, in_flight)
    subject_id = f"workers/{short}/{connections}x{in_flight}"
    return Subject(subject_id, f"{says}, {connections} x {in_flight}", partial(_measure, served, spec, keys))


def _measure(served: Served, spec: Spec, keys: Path | None, seconds: float) -> Sample:
    """Carry out a load; ``keys`` is where to put the keys of each worker, None where any will do."""
    parts = []
    for worker, address in enumerate(served.addresses):
        connections = spec.connections // len(served.addresses) or worker == 0
        part = replace(spec, address=address, connections=int(connections), seconds=seconds)
        if keys is not None:
            path = keys / f"keys-{worker}"
            path.write_text("\n".join(_keys_of(worker, max(KEYS_MIN, int(KEYS_PER_S * seconds)))))
            part = replace(part, keys=str(path))
        if connections:
            parts.append(part)
    before = sum(map(cpu_s, served.pids))
    with ThreadPoolExecutor(len(parts)) as pool:
        outcomes = [outcome for outcomes in pool.map(load.carry_out, parts) for outcome in outcomes]
    return _figures(outcomes, sum(map(cpu_s, served.pids)) - before)


def _figures(outcomes: Sequence[Outcome], used_s: float) -> dict[str, float]:
    if any(outcome.refused or outcome.unanswered for outcome in outcomes):
        raise BenchError(f"{[(outcome.refused, outcome.unanswered) for outcome in outcomes]} went wrong")
    answered = sum(len(outcome.latencies_s) for outcome in outcomes)
    figures = {"ops_per_s": sum(outcome.in_time / outcome.seconds for outcome in outcomes)}
    figures |= latencies_ms(latency for outcome in outcomes for latency in outcome.latencies_s)
    figures["server_cpu_s_per_million"] = used_s / answered * 1e6
    return figures


def _keys_of(worker: int, count: int) -> list[str]:
    """New keys of a worker's shards."""
    prefix, number = os.urandom(8).hex(), 0
    keys: list[str] = []
    while len(keys) < count:
        number += 1
        key = f"{prefix}-{number}"
        shard = shard_of(identity_hash(Identity("default", "default", key)), SHARDS)
        if worker_of(shard, WORKERS) == worker:
            keys.append(key)
    return keys
