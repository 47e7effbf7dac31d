"""What a service sees: one Python program with many tasks that reserve and then commit, on each client."""

from __future__ import annotations

from functools import partial

from bench.harness import Section, Subject, run
from bench.load import service
from bench.plan import SHARDS, Bench
from bench.server import serving


def measure(bench: Bench) -> Section:
    """The same program for idemactor's client, redis-py and psycopg."""
    with serving(bench.scratch / "service", shards=SHARDS) as server:
        clients = [("idemactor", "idemactor's client", server.rpc)]
        if bench.redis:
            clients.append(("redis", "redis-py", bench.redis.address))
        if bench.postgres:
            clients.append(("postgres", "psycopg", bench.postgres.conninfo))
        subjects = []
        for tasks in bench.plan.tasks:
            for client, says, address in clients:
                measure_it = partial(service.measure, client, address, tasks)
                name = f"{says}, {tasks} task{'s'[: tasks > 1]}"
                subjects.append(Subject(f"service/{client}/{tasks}", name, measure_it))
        section = Section("service", "What a service sees", run(subjects, bench.plan.rounds))
    section.notes.append("On asyncio. An operation is a reserve and its commit, and latencies are those of both.")
    return section
