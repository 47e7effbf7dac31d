"""A node of the simulator: real shards on memory disks, watched from inside at the two moments that matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import trio

from idemactor.core.census import Census
from idemactor.core.clock import Clock
from idemactor.core.ids import ENTROPY_BITS
from idemactor.core.ledger import CACHE_BYTES_MAX, Ledger
from idemactor.core.policy import Policy
from idemactor.observability.observer import NOBODY
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Router
from idemactor.storage.base import Batch, CommitResult, Opened
from idemactor.storage.memory import MemoryDisk, MemoryEngine
from tests.sim.checks import memory_is_disk, tallies
from tests.sim.history import History, Op

CACHES = (CACHE_BYTES_MAX, 1_600)
"""How much shards keep in memory, bytes: everything, or one entry."""

TURNS_MAX = 50_000
"""A shard that takes more turns than this in a run of seconds never rests."""


class SimEngine(MemoryEngine):
    """A memory disk whose answer takes its time after the write as well: a crash may come in between."""

    after_commit_s: Callable[[], float] | None = None

    async def commit(self, batch: Batch) -> CommitResult:
        result = await super().commit(batch)
        if self.after_commit_s is not None:
            await trio.sleep(self.after_commit_s())
        return result


class SimShard(Shard):
    """A shard that says what it is deciding, and whose memory is compared with its disk after each batch."""

    history: History
    turns = 0
    in_hand: tuple[Envelope, ...] = ()

    ledger_type: type[Ledger[Envelope]] = Ledger

    def _read(self, opened: Opened) -> Ledger[Envelope]:
        """A ledger that in half of the shards remembers next to nothing: much has to be looked up again and again."""
        token = max(opened.last_token, self._last_token)
        return self.ledger_type(
            self.number,
            self._policies,
            self._census,
            self._entropy,
            token,
            opened.tallies,
            cache_bytes_max=CACHES[self.number % 2],
        )

    async def _turn(self) -> None:
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise RuntimeError("the shard never rests")
        await super()._turn()

    async def _decide(self, ledger: Ledger[Envelope], turn: Any) -> None:
        self.history.deciding_ms[self.number] = turn.now
        self.in_hand = tuple(turn.envelopes)
        for envelope in turn.envelopes:
            if isinstance(envelope.sink, Op):
                envelope.sink.seen = True
        await super()._decide(ledger, turn)

    async def _write(self, ledger: Ledger[Envelope], turn: Any) -> None:
        await super()._write(ledger, turn)
        self._compare(ledger)

    def forgotten(self) -> list[Op]:
        """Ops of this shard that were not answered and that it knows nothing of."""
        known = {envelope.sink for envelope in (*self._mailbox, *self.in_hand)}
        if self._ledger is not None:
            known |= {waiter.ticket.sink for queue in self._ledger._waiters.values() for waiter in queue}
            known |= {envelope.sink for envelope, _ in self._ledger._work.replies}
        ours = (op for op in self.history.ops if op.shard == self.number and op.answered is None)
        return [op for op in ours if op not in known and not op.closed]

    def _compare(self, ledger: Ledger[Envelope]) -> None:
        assert isinstance(self._engine, MemoryEngine)
        disk = self._engine.disk
        self.history.violations += memory_is_disk.differences(ledger, disk)
        self.history.violations += tallies.differences(disk)


@dataclass
class Node:
    """One incarnation: what lives between a start and a crash."""

    policy: Policy
    shards: list[SimShard]
    router: Router
    clock: Clock


async def start_node(
    disks: list[MemoryDisk],
    policies: Mapping[str, Policy],
    wall_ms: int,
    settings: ShardSettings,
    rng: Random,
    history: History,
    shard_type: type[SimShard],
) -> Node:
    """Start on what the disks hold; the server's time is the later of the wall clock and of the disks."""
    census, engines = Census(), [SimEngine(disk) for disk in disks]
    for engine in engines:
        engine.after_commit_s = lambda: rng.choice([0, 0, 0, 0.001, 0.02])
        # What failed to open makes a start fail; whoever supervises the process starts it again.
        engine.disk.failing_opens = 0
    opened = [await engine.open() for engine in engines]
    clock = Clock(max(wall_ms, *(each.latest_ms for each in opened)), trio.current_time)
    shards = [
        shard_type(
            n, engine, policies, census, clock, lambda: rng.getrandbits(ENTROPY_BITS), NOBODY, settings, opened[n]
        )
        for n, engine in enumerate(engines)
    ]
    for shard in shards:
        shard.history = history
    (policy,) = policies.values()
    return Node(policy, shards, Router(shards, NOBODY), clock)
