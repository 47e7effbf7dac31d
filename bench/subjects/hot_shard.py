"""One hot shard: all keys on one of four against keys that are spread."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.harness import Section, Subject, run
from bench.load import run as load
from bench.load.spec import Spec
from bench.plan import SHARDS, Bench
from bench.server import Server, serving
from idemactor.core.keys import Identity, identity_hash, shard_of

KEYS_PER_S: Final = 60_000
"""More than the server takes: the generator must not run out of keys."""

KEYS_MIN: Final = 10_000


def measure(bench: Bench) -> Section:
    """Reserves of new keys whose shards are known."""
    with serving(bench.scratch / "hot", shards=SHARDS) as server:
        subjects = []
        for connections, in_flight in bench.plan.side_loads:
            for short, says, shard in (("one", "all keys on one shard", 0), ("spread", "keys spread", None)):
                spec = Spec("rpc", server.rpc, "new", connections, in_flight)
                name = f"{says}, {connections} x {in_flight}"
                measure_it = partial(_measure, bench.scratch, server, spec, shard)
                subjects.append(Subject(f"hot/{short}/{connections}x{in_flight}", name, measure_it))
        return Section("hot", "One hot shard", run(subjects, bench.plan.rounds))


def _measure(directory: Path, server: Server, spec: Spec, shard: int | None, seconds: float) -> dict[str, float]:
    path = directory / "keys"
    path.write_text("\n".join(_keys(max(KEYS_MIN, int(KEYS_PER_S * seconds)), shard)))
    figures = load.measure(replace(spec, keys=str(path)), server.pid, seconds)
    path.unlink()
    return figures


def _keys(count: int, shard: int | None) -> list[str]:
    """New keys, of one shard or of any."""
    prefix, number = os.urandom(8).hex(), 0
    keys: list[str] = []
    while len(keys) < count:
        number += 1
        key = f"{prefix}-{number}"
        if shard is None or shard_of(identity_hash(Identity("default", "default", key)), SHARDS) == shard:
            keys.append(key)
    return keys
