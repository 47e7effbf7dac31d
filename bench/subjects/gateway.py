"""What the reverse proxy costs: beside the upstream alone, and beside nginx as a plain proxy."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final

from bench.harness import Section, Subject, run
from bench.load import run as load
from bench.load import upstream as small
from bench.load.spec import Spec
from bench.peers import nginx
from bench.plan import MANY, ONE, SHARDS, Bench, Load
from bench.server import serving

LOADS: Final[tuple[Load, ...]] = (ONE, MANY)
REPEATS_MAX: Final = 200_000
"""More than a generator sends of one key."""


def _answering(bench: Bench) -> AbstractContextManager[nginx.Nginx | small.Upstream]:
    folder = bench.scratch / "upstream"
    return nginx.answering(folder) if bench.plan.peers else small.answering(folder)


def measure(bench: Bench) -> Section:
    """The same requests straight to the upstream, through nginx, and through the proxy: passed on, new, repeated."""
    with ExitStack() as stack:
        upstream = stack.enter_context(_answering(bench))
        server = stack.enter_context(serving(bench.scratch / "gateway", shards=SHARDS, upstream=upstream.address))
        rows = [("upstream", "the upstream alone", "gateway", upstream.address, upstream.pid, "")]
        if bench.plan.peers:
            plain = stack.enter_context(nginx.proxying(bench.scratch / "nginx", upstream.address))
            rows.append(("nginx", "nginx as a plain proxy", "gateway", plain.address, plain.pid, ""))
        repeats = bench.scratch / "repeated-key"
        repeats.write_text("the-same-key\n" * REPEATS_MAX)
        rows += [
            ("passing", "idemactor, passed on unprotected", "passing", server.gateway, server.pid, ""),
            ("new", "idemactor, a new key each", "gateway", server.gateway, server.pid, ""),
            ("repeat", "idemactor, one key, replayed", "gateway", server.gateway, server.pid, str(repeats)),
        ]
        subjects = [
            Subject(
                f"gateway/{short}/{connections}x{in_flight}",
                f"{name}, {connections} x {in_flight}",
                partial(load.measure, Spec(protocol, address, "new", connections, in_flight, keys=keys), pid),
            )
            for connections, in_flight in LOADS
            for short, name, protocol, address, pid, keys in rows
        ]
        section = Section("gateway", "The reverse proxy", run(subjects, bench.plan.rounds))
    section.notes.append(
        "By our generator. A new key is reserved, forwarded and committed: two writes on disk for each answer."
        " nginx has one worker process."
    )
    return section
