"""A node of the simulator: real shards on memory disks, watched from inside at the two moments that matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from idemactor.core.census import Census
from idemactor.core.clock import Clock, Sequencer
from idemactor.core.ids import ENTROPY_BITS
from idemactor.core.ledger import CACHE_BYTES_MAX, Ledger
from idemactor.core.policy import Policy
from idemactor.observability.observer import NOBODY, Observer
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.bell import Bell
from idemactor.shard.broom import Broom
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Router
from idemactor.storage.base import Opened
from idemactor.storage.memory import MemoryEngine
from tests.sim.checks import memory_is_disk, outbox_is_disk, quota, tallies
from tests.sim.disks import Power, Storage
from tests.sim.history import History, Op
from tests.sim.wires import op_of

CACHES = (CACHE_BYTES_MAX, 1_600)
"""How much shards keep in memory, bytes: everything, or one entry."""

TURNS_MAX = 50_000
"""A shard that takes more turns than this in a run of seconds never rests."""


class SimShard(Shard):
    """A shard that says what it is deciding, and whose memory is compared with its disk after each batch."""

    history: History
    storage: Storage
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
            sequence=self._sequencer.next,
            cache_bytes_max=CACHES[self.number % 2],
        )

    async def _turn(self) -> None:
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise RuntimeError("the shard never rests")
        await super()._turn()

    async def _bring_back(self, turn: Any) -> Ledger[Envelope] | None:
        self.in_hand = tuple(turn.envelopes)
        return await super()._bring_back(turn)

    async def _recall(self, ledger: Ledger[Envelope], turn: Any) -> bool:
        self.in_hand = tuple(turn.envelopes)
        return await super()._recall(ledger, turn)

    async def _decide(self, ledger: Ledger[Envelope], turn: Any) -> None:
        self.history.deciding_ms[self.number] = turn.now
        self.in_hand = tuple(turn.envelopes)
        for envelope in turn.envelopes:
            op = op_of(envelope)
            if op is not None:
                op.seen = True
        before = {key: tally.records for key, tally in ledger.tallies.items()}
        await super()._decide(ledger, turn)
        self.history.violations += quota.overshot(before, ledger.tallies, self._census, self._policies)
        for envelope, _ in ledger._work.replies:
            op = op_of(envelope)
            if op is not None and op.remote:
                op.at, op.decided = turn.now, op.history.stamp()

    async def _write(self, ledger: Ledger[Envelope], turn: Any) -> None:
        await super()._write(ledger, turn)
        await self._compare(ledger, turn.now)

    def forgotten(self) -> list[Op]:
        """Ops of this shard that were not answered and that it knows nothing of."""
        known = {envelope.sink for envelope in (*self._mailbox, *self.in_hand)}
        if self._ledger is not None:
            known |= {waiter.ticket.sink for queue in self._ledger._waiters.values() for waiter in queue}
            known |= {envelope.sink for envelope, _ in self._ledger._work.replies}
        ours = (op for op in self.history.ops if op.shard == self.number and op.answered is None and not op.remote)
        return [op for op in ours if op not in known and not op.closed]

    async def _compare(self, ledger: Ledger[Envelope], now: int) -> None:
        disk = self.storage.image(self.number)
        reader = MemoryEngine(disk)
        reader._usable = True
        rows = await reader.outbox(0, len(disk.entries) + len(disk.events))
        self.history.violations += outbox_is_disk.differences(ledger, disk, rows, now)
        self.history.violations += memory_is_disk.differences(ledger, disk)
        self.history.violations += tallies.differences(disk)


class SimRouter(Router):
    """A router that says when all its shards have ended."""

    def __init__(self, shards: Sequence[SimShard], observer: Observer) -> None:
        super().__init__(shards, observer)
        self.ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """As ever."""
        try:
            await super().run(task_status=task_status)
        finally:
            self.ended.set()


@dataclass
class Node:
    """One incarnation: what lives between a start and a crash."""

    policy: Policy
    shards: list[SimShard]
    router: SimRouter
    clock: Clock
    power: Power

    @property
    def ended(self) -> trio.Event:
        """Set once all its shards have ended."""
        return self.router.ended

    def settle_only(self) -> None:
        """The process was told to stop: nothing is granted any more, and nobody waits."""
        self.router.settle_only()


async def start_node(
    storage: Storage,
    power: Power,
    policies: Mapping[str, Policy],
    clock_at: Callable[[int], Clock],
    settings: ShardSettings,
    history: History,
    shard_type: type[SimShard],
    namespace: str,
) -> Node:
    """Start on what is stored.

    Args:
        clock_at: Makes the clock, from the latest time that is stored.

    Raises:
        StorageError: It cannot be read.
    """
    census, broom, bell, rng = Census(), Broom(), Bell(), storage.rng
    engines = storage.engines(range(len(storage.disks)), 0, power)
    opened = [await engine.open() for engine in engines.values()]
    clock = clock_at(max(each.latest_ms for each in opened))
    sequencer = Sequencer(clock.now_us)

    def entropy() -> int:
        return rng.getrandbits(ENTROPY_BITS)

    shards = [
        shard_type(n, engine, policies, census, clock, entropy, NOBODY, settings, opened[n], broom, bell, sequencer)
        for n, engine in engines.items()
    ]
    for shard in shards:
        shard.history, shard.storage = history, storage
    router = SimRouter(shards, NOBODY)
    bell.on_moved = router.lines_moved
    return Node(policies[namespace], shards, router, clock, power)
