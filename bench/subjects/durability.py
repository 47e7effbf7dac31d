"""``durability = "process"``: answers that survive kill -9 but not a power loss, measured apart and named so."""

from __future__ import annotations

from functools import partial

from bench.harness import Section, Subject, run
from bench.load import run as load
from bench.load.spec import Spec
from bench.plan import MANY, PIPELINED, SHARDS, Bench
from bench.server import Durability, serving

_BOTH: tuple[Durability, ...] = ("full", "process")


def measure(bench: Bench) -> Section:
    """The same loads with and without a sync before each answer."""
    with (
        serving(bench.scratch / "full", shards=SHARDS, durability="full") as full,
        serving(bench.scratch / "process", shards=SHARDS, durability="process") as process,
    ):
        subjects = []
        for connections, in_flight in (MANY, PIPELINED):
            for durability, server in zip(_BOTH, (full, process), strict=True):
                spec = Spec("rpc", server.rpc, "new", connections, in_flight)
                name = f'durability = "{durability}", {connections} x {in_flight}'
                subject_id = f"durability/{durability}/{connections}x{in_flight}"
                subjects.append(Subject(subject_id, name, partial(load.measure, spec, server.pid)))
        section = Section("durability", "Without power-loss safety", run(subjects, bench.plan.rounds))
    section.notes.append('No other table and no target uses `durability = "process"`.')
    return section
