"""Growth: throughput, memory and disk with few and with many live keys, and how soon a server answers on them."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from bench.fill import Filling, fill
from bench.harness import Result, Sample, Section, Subject, run
from bench.load import run as load
from bench.load.once import first_answer
from bench.load.spec import Spec
from bench.plan import MANY, PIPELINED, SHARDS, Bench
from bench.processes import resident_bytes
from bench.server import Server, serving

DAY_MS: Final = 86_400_000
MIB: Final = 1024 * 1024


def measure(bench: Bench) -> Section:
    """Few and many keys side by side; the huge number once, where there is time."""
    section = Section("growth", "Growth")
    few, many = bench.plan.keys
    for keys in (few, many):
        _fill(bench, keys)
    with ExitStack() as stack:
        subjects = []
        for keys in (few, many):
            server = stack.enter_context(serving(_directory(bench, keys), shards=SHARDS))
            subjects += _throughput(server, keys)
        section.results += run(subjects, bench.plan.rounds)
    for keys in (few, many):
        starts = [_start(bench, keys) for _ in range(bench.plan.starts)]
        section.results.append(Result(f"growth/start/{keys}", f"{keys:,} keys: a start", starts))
    kills = [_kill(bench, many) for _ in range(bench.plan.starts)]
    section.results.append(Result(f"growth/kill/{many}", f"{many:,} keys: kill -9 under load", kills))
    for keys in (few, many):
        shutil.rmtree(_directory(bench, keys))
    if bench.plan.keys_huge and bench.elapsed_s() < bench.plan.huge_until_s:
        section.results += _huge(bench)
    elif bench.plan.keys_huge:
        section.notes.append(f"{bench.plan.keys_huge:,} keys were left out: the run had taken too long already.")
    section.notes.append(
        "Keys are committed ones without outcome, filled in past the server. Memory is what is resident after the"
        " first answer. A start counts from the program's, a kill from the signal; both include Python's own start."
    )
    return section


def _directory(bench: Bench, keys: int) -> Path:
    return bench.scratch / f"growth-{keys}"


def _fill(bench: Bench, keys: int) -> float:
    """Fill a directory; returns the bytes on disk for each key."""
    now_ms = time.time_ns() // 1_000_000
    directory = _directory(bench, keys)
    fill(Filling(str(directory), keys, SHARDS, (), now_ms, now_ms + DAY_MS, DAY_MS))
    return _bytes_per_key(directory, keys)


def _bytes_per_key(directory: Path, keys: int) -> float:
    return sum(path.stat().st_size for path in directory.glob("shard-*")) / keys


def _throughput(server: Server, keys: int) -> list[Subject]:
    subjects = []
    for connections, in_flight in (MANY, PIPELINED):
        spec = Spec("rpc", server.rpc, "new", connections, in_flight)
        name = f"{keys:,} keys: reserve of new ones, {connections} x {in_flight}"
        subject_id = f"growth/new/{keys}/{connections}x{in_flight}"
        subjects.append(Subject(subject_id, name, partial(load.measure, spec, server.pid)))
    return subjects


def _start(bench: Bench, keys: int) -> Sample:
    """Start, ask for one new key, and see what that took."""
    directory = _directory(bench, keys)
    started = time.perf_counter()
    with serving(directory, shards=SHARDS) as server:
        first_answer(server.rpc)
        answered_s = time.perf_counter() - started
        return {
            "first_answer_s": answered_s,
            "resident_mib": resident_bytes(server.pid) / MIB,
            "disk_bytes_per_key": _bytes_per_key(directory, keys),
        }


def _kill(bench: Bench, keys: int) -> Sample:
    """Kill a server that is at work, start another on what it left, and count to its first answer."""
    directory = _directory(bench, keys)
    with serving(directory, shards=SHARDS) as server:
        load.measure(Spec("rpc", server.rpc, "new", *MANY), server.pid, bench.plan.rounds.seconds / 2)
        started = time.perf_counter()
        server.process.kill()
        server.process.wait()
    with serving(directory, shards=SHARDS) as server:
        first_answer(server.rpc)
        return {"first_answer_s": time.perf_counter() - started}


def _huge(bench: Bench) -> list[Result]:
    """Once as many keys as a server is to carry."""
    keys = bench.plan.keys_huge
    _fill(bench, keys)
    starts = [_start(bench, keys)]
    with serving(_directory(bench, keys), shards=SHARDS) as server:
        throughput = run(_throughput(server, keys), bench.plan.rounds)
        used: Sample = {"resident_mib": resident_bytes(server.pid) / MIB}
    shutil.rmtree(_directory(bench, keys))
    start = Result(f"growth/start/{keys}", f"{keys:,} keys: a start", starts)
    return [start, *throughput, Result(f"growth/used/{keys}", f"{keys:,} keys: after the load", [used])]
