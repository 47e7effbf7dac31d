"""``make sim``: very many seeds on all processors, and a table of how many seeds each planted mistake took.

``SIM_SEEDS`` says how many seeds with commands alone (the other kinds get their share of that, see ``KINDS``),
``SIM_FIRST`` which is the first, ``SIM_SEED`` runs one alone in each kind, ``SIM_PROCESSES`` takes fewer processors. It
ends with 1 where a seed broke a promise or a planted mistake was not found.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.sim.planted import PLANTED
from tests.sim.planted_outbox import PLANTED_OUTBOX
from tests.sim.planted_storage import PLANTED_STORAGE
from tests.sim.planted_workers import PLANTED_WORKERS
from tests.sim.verdict import finds, verdict
from tests.sim.wires import SimPeer
from tests.sim.world import Parts, run_world

SEEDS_TO_FIND: Final = 1_000
"""A planted mistake that takes more seeds than this counts as not found."""
CHUNK: Final = 20
TOLD_EVERY: Final = 1_000
"""So often in a campaign it is said how many seeds were clean so far."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of run: what the table calls it, and how many of the seeds it gets (one in ``share``)."""

    name: str
    share: int
    dispatching: bool = False
    peer_type: type[SimPeer] | None = None


COMMANDS: Final = Kind("commands", 1)
DISPATCH: Final = Kind("dispatch", 2, dispatching=True)
WORKERS: Final = Kind("workers", 2, peer_type=SimPeer)
BOTH: Final = Kind("dispatch on workers", 4, dispatching=True, peer_type=SimPeer)
KINDS: Final = (COMMANDS, DISPATCH, WORKERS, BOTH)


def main() -> int:
    """Run it all."""
    if "SIM_SEED" in os.environ:
        seeds = [int(os.environ["SIM_SEED"])]
        return _report([_clean(kind, seeds) for kind in KINDS])
    count = int(os.environ.get("SIM_SEEDS", "10000"))
    processes = int(os.environ.get("SIM_PROCESSES", "0")) or os.cpu_count() or 1
    with ProcessPoolExecutor(processes) as pool:
        missed = _planted(pool)
        return max(_seeds(pool, int(os.environ.get("SIM_FIRST", "0")), count), missed)


# ---------------------------------------------------------------------------------------------------- planted mistakes


def _planted(pool: ProcessPoolExecutor) -> int:
    """Print the table; 1 where a mistake was not found."""
    cases = [(COMMANDS, name) for name in PLANTED | PLANTED_STORAGE]
    cases += [(DISPATCH, name) for name in PLANTED_OUTBOX]
    cases += [(WORKERS, name) for name in PLANTED_WORKERS]
    print(f"{'planted mistake':<48} {'kind':<9} seeds needed")
    missed = 0
    for (kind, name), needed in zip(cases, pool.map(_seeds_needed, cases), strict=True):
        missed += needed is None
        print(f"{name:<48} {kind.name:<9} {'NOT FOUND' if needed is None else needed}", flush=True)
    print(f"{len(cases) - missed} of {len(cases)} planted mistakes found within {SEEDS_TO_FIND} seeds", flush=True)
    return 1 if missed else 0


def _seeds_needed(case: tuple[Kind, str]) -> int | None:
    """How many seeds, from 0 on, it takes until one shows the mistake."""
    return next((seed + 1 for seed in range(SEEDS_TO_FIND) if _shows(*case, seed)), None)


def _shows(kind: Kind, name: str, seed: int) -> bool:
    if kind == WORKERS:
        return finds(seed, peer_type=PLANTED_WORKERS[name])
    if kind == DISPATCH:
        return finds(seed, Parts(PLANTED_OUTBOX[name][0]()), dispatching=True)
    return finds(seed, (PLANTED | PLANTED_STORAGE)[name]())


# ----------------------------------------------------------------------------------------------------------- all seeds


@dataclass(frozen=True, slots=True)
class Chunk:
    """How some seeds of one world went."""

    kind: Kind
    seeds: int
    commands: int
    broken: list[str]


def _seeds(pool: ProcessPoolExecutor, first: int, count: int) -> int:
    chunks = (pool.submit(_clean, kind, seeds) for kind, seeds in _chunks(first, count))
    return _report(future.result() for future in list(chunks))


def _chunks(first: int, count: int) -> Iterator[tuple[Kind, list[int]]]:
    for kind in KINDS:
        seeds = range(first, first + max(1, count // kind.share))
        for start in range(0, len(seeds), CHUNK):
            yield kind, list(seeds[start : start + CHUNK])


def _clean(kind: Kind, seeds: list[int]) -> Chunk:
    """Run seeds and note what is wrong with them."""
    commands, broken = 0, []
    for seed in seeds:
        try:
            run = run_world(seed, dispatching=kind.dispatching, peer_type=kind.peer_type)
            found = verdict(run)
            commands += len(run.history.ops) + len(run.dispatches.ops)
        except Exception as error:
            found = [f"it fell over: {error!r}"]
        if found:
            broken.append(f"{kind.name}: replay with: SIM_SEED={seed} make sim\n" + "\n".join(found[:10]))
    return Chunk(kind, len(seeds), commands, broken)


def _report(chunks: Iterable[Chunk]) -> int:
    """Print what is broken as it comes, and the counts; 1 where anything is broken."""
    begin, seeds, commands, broken = time.monotonic(), dict.fromkeys(KINDS, 0), 0, 0
    told = 0
    for chunk in chunks:
        seeds[chunk.kind] += chunk.seeds
        commands += chunk.commands
        broken += len(chunk.broken)
        total = sum(seeds.values())
        for text in chunk.broken:
            print(text, flush=True)
        if total - told >= TOLD_EVERY:
            told = total
            print(f"{total - broken} of {total} seeds clean after {time.monotonic() - begin:.0f} s", flush=True)
    named = ", ".join(f"{count} {kind.name}" for kind, count in seeds.items())
    total, took = sum(seeds.values()), time.monotonic() - begin
    print(f"{total} seeds ({named}), {commands} commands in {took:.0f} s: {total - broken} clean, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
