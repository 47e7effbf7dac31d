"""Latency at fixed arrival rates, up to saturation: calls leave when their time has come, whatever the server does."""

from __future__ import annotations

from functools import partial

from bench.harness import Section, Subject, run
from bench.load import run as load
from bench.load.spec import Spec
from bench.plan import SHARDS, Bench
from bench.server import serving

CONNECTIONS = 32


def measure(bench: Bench) -> Section:
    """The same rates for RPC, HTTP (not in brief) and Redis."""
    with serving(bench.scratch / "open", shards=SHARDS) as server:
        targets = [("rpc", "idemactor, RPC", server.rpc, server.pid)]
        if not bench.plan.brief:
            targets.append(("http", "idemactor, HTTP", server.http, server.pid))
        if bench.redis:
            targets.append(("resp", "Redis", bench.redis.address, bench.redis.pid))
        subjects = []
        for protocol, says, address, pid in targets:
            for rate in bench.plan.rates:
                spec = Spec(protocol, address, "new", CONNECTIONS, rate=rate)
                name = f"{says}, {rate:,.0f} a second"
                subjects.append(Subject(f"open/{protocol}/{rate:.0f}", name, partial(load.measure, spec, pid)))
        section = Section("open", "Open-loop latency", run(subjects, bench.plan.rounds))
    section.notes.append(
        "Reserves of new keys on 32 connections. Calls that had to wait because the server was behind count from the"
        " time when they should have left (no coordinated omission). The generator spins until a call is due, so"
        " that its core is always busy."
    )
    return section
