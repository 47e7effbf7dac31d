"""What the server can take over HTTP, beside a Durable Object on workerd: wrk for TCP, our generator for the rest."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final

from bench.harness import Section, Subject, run
from bench.load import run as load
from bench.load.spec import Spec
from bench.peers.wrk import HttpPeer, Mode, wrk
from bench.plan import MANY, SHARDS, Bench, Load
from bench.server import Server, serving

PATHS: Final = ("/v1/default/reserve", "/v1/default/commit")
CALLS_PER_S: Final = 100.0
"""Of the caller who comes once in a while."""

PATIENCE: Final = 3
"""So many times as long as the others that caller is watched: it makes few calls."""

_SAYS: Final[dict[Mode, str]] = {
    "new": "reserve of new keys",
    "cycle": "reserve, then commit",
    "hot": "duplicates of one committed key",
}


def measure(bench: Bench) -> Section:
    """The same loads for both; the last row is one caller at ``CALLS_PER_S``."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(bench.scratch / "http", shards=SHARDS))
        subjects = []
        if bench.plan.peers:
            # wrk is a program of others: without the peers there is our generator alone.
            subjects += _by_wrk(bench, server)
            for shards in () if bench.plan.brief else bench.plan.shard_counts:
                other = stack.enter_context(serving(bench.scratch / f"http-{shards}", shards=shards))
                name = f"idemactor, {_SAYS['new']}, 32 x 1, {shards} shard{'s'[: shards > 1]}"
                measure_it = partial(wrk, _peer(other), "new", *MANY)
                subjects.append(Subject(f"http/shards-{shards}/new/32x1", name, measure_it))
        subjects += _by_our_generator(bench, server)
        section = Section("http", "Server capacity over HTTP", run(subjects, bench.plan.rounds))
    section.notes.append("By wrk unless it says otherwise; more than one in flight is HTTP pipelining.")
    return section


def _peer(server: Server) -> HttpPeer:
    return HttpPeer(server.http, PATHS, refuses_duplicates=False)


def _by_wrk(bench: Bench, server: Server) -> list[Subject]:
    peers = [("http", "idemactor", _peer(server))]
    if bench.durable_object:
        peers.append(("workerd", "Durable Object", bench.durable_object.http))
    chosen: list[tuple[Mode, Load]] = [("new", MANY), ("cycle", MANY)]
    if not bench.plan.brief:
        chosen = [*(("new", given) for given in bench.plan.loads), ("cycle", MANY), ("hot", MANY)]
    return [
        Subject(
            f"{short}/{mode}/{connections}x{in_flight}",
            f"{who}, {_SAYS[mode]}, {connections} x {in_flight}",
            partial(wrk, peer, mode, connections, in_flight),
        )
        for mode, (connections, in_flight) in chosen
        for short, who, peer in peers
    ]


def _by_our_generator(bench: Bench, server: Server) -> list[Subject]:
    subjects = []
    for connections, in_flight in bench.plan.side_loads:
        for address, where, says in ((server.http, "tcp", ""), (server.http_unix, "unix", "Unix socket, ")):
            spec = Spec("http", address, "new", connections, in_flight)
            name = f"idemactor, {_SAYS['new']}, {connections} x {in_flight}, {says}our generator"
            subject_id = f"http/{where}/new/{connections}x{in_flight}"
            subjects.append(Subject(subject_id, name, partial(load.measure, spec, server.pid)))
    name = f"idemactor, one call at {CALLS_PER_S:.0f} a second"
    subjects.append(Subject("http/calm", name, partial(_one_caller, server)))
    return subjects


def _one_caller(server: Server, seconds: float) -> dict[str, float]:
    spec = Spec("http", server.http, "new", connections=1, rate=CALLS_PER_S)
    return load.measure(spec, server.pid, seconds * PATIENCE)
