"""The simulator: some hundred seeds, every checker, and the proof that the checkers find planted mistakes.

The long form is ``make sim`` (``__main__.py``). ``SIM_SEEDS`` says how many seeds to run here, ``SIM_SEED`` replays
one. A fifteenth of them is run with what is dispatched, a tenth on several workers, and a few with both.
"""

from __future__ import annotations

import os

import pytest

from idemactor.core.delivery import OperationState
from tests.sim.checks import accepted
from tests.sim.planted import PLANTED
from tests.sim.planted_outbox import PLANTED_OUTBOX
from tests.sim.planted_storage import PLANTED_STORAGE
from tests.sim.planted_workers import PLANTED_WORKERS
from tests.sim.verdict import finds, verdict
from tests.sim.wires import SimPeer
from tests.sim.world import Parts, run_world

SEEDS = int(os.environ.get("SIM_SEEDS", "60"))
SEEDS_TO_FIND_A_BUG = 300
LIKELY = {
    "waiters left waiting by a stop": 186,
    "counts shared with what is to be written": 147,
    "what was to be written behind dropped when that fails": 10,
}
"""Seeds to try first, where it was long before one found it: any other may do as well."""
CHUNK = 25


def seeds(count: int = SEEDS) -> list[range]:
    """The seeds of this session, in chunks."""
    if "SIM_SEED" in os.environ:
        seed = int(os.environ["SIM_SEED"])
        return [range(seed, seed + 1)]
    return [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


@pytest.mark.parametrize("chunk", seeds(), ids=lambda chunk: f"{chunk.start}-{chunk.stop - 1}")
def test_no_seed_breaks_a_promise(chunk: range) -> None:
    for seed in chunk:
        found = verdict(run_world(seed))
        assert not found, f"replay with: SIM_SEED={seed} make sim\n" + "\n".join(found[:10])


@pytest.mark.parametrize("chunk", seeds(max(1, SEEDS // 15)), ids=lambda chunk: f"{chunk.start}-{chunk.stop - 1}")
def test_no_seed_breaks_a_promise_about_what_is_dispatched(chunk: range) -> None:
    for seed in chunk:
        found = verdict(run_world(seed, dispatching=True))
        assert not found, f"replay with: SIM_SEED={seed} make sim\n" + "\n".join(found[:10])


@pytest.mark.parametrize("chunk", seeds(max(1, SEEDS // 10)), ids=lambda chunk: f"{chunk.start}-{chunk.stop - 1}")
def test_no_seed_breaks_a_promise_of_several_workers(chunk: range) -> None:
    for seed in chunk:
        found = verdict(run_world(seed, peer_type=SimPeer))
        assert not found, f"replay with: SIM_SEED={seed} make sim\n" + "\n".join(found[:10])


@pytest.mark.parametrize("chunk", seeds(max(1, SEEDS // 40)), ids=lambda chunk: f"{chunk.start}-{chunk.stop - 1}")
def test_no_seed_breaks_a_promise_about_what_several_workers_dispatch(chunk: range) -> None:
    for seed in chunk:
        found = verdict(run_world(seed, dispatching=True, peer_type=SimPeer))
        assert not found, f"replay with: SIM_SEED={seed} make sim\n" + "\n".join(found[:10])


@pytest.mark.parametrize("seed", [9_305, 20_139])
def test_a_seed_that_once_found_something_is_clean(seed: int) -> None:
    assert not verdict(run_world(seed))


@pytest.mark.parametrize("name", PLANTED | PLANTED_STORAGE)
def test_a_planted_mistake_is_found(name: str) -> None:
    parts = (PLANTED | PLANTED_STORAGE)[name]()
    seeds_to_try = (LIKELY.get(name, 0), *range(SEEDS_TO_FIND_A_BUG))
    assert any(finds(seed, parts) for seed in seeds_to_try), f"nobody noticed: {name}"


@pytest.mark.parametrize("name", PLANTED_OUTBOX)
def test_a_planted_mistake_with_what_is_dispatched_is_found(name: str) -> None:
    make, first = PLANTED_OUTBOX[name]
    found = (finds(seed, Parts(make()), dispatching=True) for seed in (first, *range(SEEDS_TO_FIND_A_BUG)))
    assert any(found), f"nobody noticed: {name}"


@pytest.mark.parametrize("name", PLANTED_WORKERS)
def test_a_planted_mistake_between_workers_is_found(name: str) -> None:
    found = (finds(seed, peer_type=PLANTED_WORKERS[name]) for seed in range(SEEDS_TO_FIND_A_BUG))
    assert any(found), f"nobody noticed: {name}"


def test_a_seed_is_one_run() -> None:
    first, second = (run_world(7).history.ops for _ in range(2))
    assert len(first) > 50
    assert [repr(op) for op in first] == [repr(op) for op in second]


def test_a_seed_with_dispatch_is_one_run() -> None:
    first, second = (run_world(7, dispatching=True).dispatches.ops for _ in range(2))
    assert len(first) > 50
    assert [repr(op) for op in first] == [repr(op) for op in second]


def test_a_seed_of_several_workers_is_one_run() -> None:
    first, second = (run_world(7, peer_type=SimPeer).history.ops for _ in range(2))
    assert len(first) > 50
    assert [repr(op) for op in first] == [repr(op) for op in second]


def test_the_world_of_several_workers_is_eventful() -> None:
    """Much is asked of another worker than the key's, and of some of it nobody hears again although it was decided."""
    ops = [op for seed in range(10) for op in run_world(seed, peer_type=SimPeer).history.ops]
    remote = [op for op in ops if op.remote]
    assert len(remote) > 500
    assert sum(op.vague and op.at is not None for op in remote) > 20
    assert {"Reserved", "Committed", "Released", "Unavailable"} <= {type(op.reply).__name__ for op in remote}


def test_the_world_of_what_is_dispatched_is_eventful() -> None:
    worlds = [run_world(seed, dispatching=True) for seed in range(8)]
    answers = {(type(op.command).__name__, type(op.reply).__name__) for world in worlds for op in world.dispatches.ops}
    expected = {
        ("Cancel", "Cancelled"), ("Cancel", "Uncancellable"), ("Commit", "Committed"),
        ("Dispatch", "Dispatched"), ("Dispatch", "NoneType"), ("Dispatch", "Unavailable"), ("Doubt", "Doubted"),
        ("Extend", "Extended"), ("Postpone", "Postponed"), ("Postpone", "Stale"), ("Postpone", "AlreadyCommitted"),
        ("Release", "Released"), ("Resolve", "Committed"), ("Resolve", "Released"), ("NackEvent", "Nacked"),
        ("AckEvent", "Acked"), ("Watch", "Watched"),
    }  # fmt: skip
    assert answers >= expected
    states = {state for world in worlds for _, state in accepted.endings(world).values()}
    assert states == {state for state in OperationState if state.ended}
    attempts = [e.record.attempt for world in worlds for d in world.disks for e in d.entries.values() if e.record]
    assert max(attempts) > 3
    assert sum(len(world.destination.executions) for world in worlds) > 100


def test_the_world_is_eventful() -> None:
    """A simulator in which nothing happens finds nothing: every kind of answer has to come up."""
    worlds = [run_world(seed) for seed in range(20)]
    kinds = {type(op.reply).__name__ for world in worlds for op in world.history.ops}
    expected = {
        "Accepted", "AlreadyCommitted", "Committed", "Completed", "Doubted", "Extended", "Found", "InDoubt",
        "InFlight", "NoneType", "Overloaded", "Released", "Reserved", "Stale", "Unavailable", "Unknown", "Withdrawn",
    }  # fmt: skip
    assert kinds >= expected
    assert sum(disk.commits for world in worlds for disk in world.disks) > 800
    assert any(disk.incidents for world in worlds for disk in world.disks)
