"""What the server can take over MessagePack-RPC, beside Redis and PostgreSQL."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final

from bench.harness import Section, Subject, run
from bench.load import run as load
from bench.load.spec import Mode, Spec
from bench.peers.postgres import Postgres
from bench.peers.redis import Redis
from bench.plan import DEEP, MANY, ONE, SHARDS, Bench, Load
from bench.server import Server, serving

_SAYS: Final[dict[Mode, str]] = {
    "new": "reserve of new keys",
    "cycle": "reserve, then commit",
    "hot": "duplicates of one committed key",
}


def measure(bench: Bench) -> Section:
    """Every load on every transport and number of shards; all servers run, one at a time is loaded."""
    with ExitStack() as stack:
        default = stack.enter_context(serving(bench.scratch / "rpc", shards=SHARDS))
        subjects = [_subject(default, "new", given) for given in bench.plan.loads]
        subjects += _of_peers(bench)
        for mode in ("cycle", "hot"):
            subjects += [_subject(default, mode, given) for given in _side(bench)]
        subjects += [_subject(default, "new", given, unix=True) for given in bench.plan.side_loads]
        for shards in bench.plan.shard_counts:
            server = stack.enter_context(serving(bench.scratch / f"rpc-{shards}", shards=shards))
            subjects += [_subject(server, "new", given, shards=shards) for given in bench.plan.side_loads]
        section = Section("rpc", "Server capacity over MessagePack-RPC", run(subjects, bench.plan.rounds))
    section.notes.append(
        "Ours and the rows 'same generator' are loaded by our generator in Python, the others by redis-benchmark and"
        " pgbench. In a cycle reserve and commit are two operations. Where the generator's share of a core comes near"
        " 1, it was the limit."
    )
    return section


def _side(bench: Bench) -> tuple[Load, ...]:
    return (MANY,) if bench.plan.brief else bench.plan.loads


def _subject(server: Server, mode: Mode, given: Load, *, unix: bool = False, shards: int = SHARDS) -> Subject:
    connections, in_flight = given
    address = server.rpc_unix if unix else server.rpc
    spec = Spec("rpc", address, mode, connections, in_flight)
    where = ("unix/" if unix else "") + (f"shards-{shards}/" if shards != SHARDS else "")
    subject_id = f"rpc/{where}{mode}/{connections}x{in_flight}"
    extra = (", Unix socket" if unix else "") + (f", {shards} shard{'s'[: shards > 1]}" if shards != SHARDS else "")
    name = f"idemactor, {_SAYS[mode]}, {connections} x {in_flight}{extra}"
    return Subject(subject_id, name, partial(load.measure, spec, server.pid))


def _of_peers(bench: Bench) -> list[Subject]:
    subjects = []
    if bench.redis:
        subjects += _of_redis(bench, bench.redis)
    if bench.postgres:
        subjects += _of_postgres(bench, bench.postgres)
    return subjects


def _of_redis(bench: Bench, redis: Redis) -> list[Subject]:
    subjects = []
    for connections, in_flight in bench.plan.loads:
        name = f"Redis, SET NX PX of new keys, {connections} x {in_flight}"
        measure_it = partial(redis.benchmark, connections, in_flight)
        subjects.append(Subject(f"redis/new/{connections}x{in_flight}", name, measure_it))
    same: list[tuple[Mode, Load]] = [("new", ONE)]
    for mode, (connections, in_flight) in same if bench.plan.brief else [*same, ("new", MANY), ("cycle", MANY)]:
        spec = Spec("resp", redis.address, mode, connections, in_flight)
        what = "SET NX PX, then compare-and-delete" if mode == "cycle" else "SET NX PX of new keys"
        name = f"Redis, {what}, {connections} x {in_flight}, same generator"
        subject_id = f"redis/same/{mode}/{connections}x{in_flight}"
        subjects.append(Subject(subject_id, name, partial(load.measure, spec, redis.pid)))
    return subjects


def _of_postgres(bench: Bench, postgres: Postgres) -> list[Subject]:
    subjects = []
    scripts: list[tuple[Mode, Load]] = [("new", given) for given in bench.plan.loads if given != DEEP]
    for script, (connections, in_flight) in scripts if bench.plan.brief else [*scripts, ("cycle", MANY), ("hot", MANY)]:
        what = "INSERT ON CONFLICT DO NOTHING of new keys" if script == "new" else _SAYS[script]
        name = f"PostgreSQL, {what}, {connections} x {in_flight}"
        measure_it = partial(postgres.benchmark, script, connections, in_flight)
        subjects.append(Subject(f"postgres/{script}/{connections}x{in_flight}", name, measure_it))
    return subjects
