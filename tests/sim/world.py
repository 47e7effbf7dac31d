"""One run of the simulator: callers, nodes, and everything that can go wrong with disks, clocks and processes.

The run is a function of its seed. Time is trio's mock clock; no file, no thread and no real time is involved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import trio
from trio.testing import MockClock

from idemactor.core.commands import Command
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.policy import OnDoubt, OnLeaseExpiry, Policy
from idemactor.shard.actor import ShardSettings
from idemactor.shard.mailbox import Envelope
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.memory import Fault, MemoryDisk
from tests.sim.callers import Caller
from tests.sim.history import History, Op
from tests.sim.node import Node, SimShard, start_node

NAMESPACE: Final = "trade"
START_MS: Final = 1_700_000_000_000
QUIET_S: Final = 65
"""How long the world is left alone at the end: longer than the longest back-off, lease and ttl of a run."""

FAULTS: Final = (
    Fault(CommitResult.FAILED),
    Fault(CommitResult.UNKNOWN),
    Fault(CommitResult.UNKNOWN, applied=True),
)


@dataclass
class World:
    """What one seed makes: all that the checkers are given once it is over."""

    seed: int
    rng: Random
    keys: list[Identity]
    disks: list[MemoryDisk]
    policy: Policy
    settings: ShardSettings
    shard_type: type[SimShard]
    history: History = field(default_factory=History)
    tokens: dict[Identity, list[int]] = field(default_factory=dict)
    stopping: bool = False
    wall_step_ms: int = 0
    rest_ms: int = 0
    node: Node | None = None
    up: trio.Event = field(default_factory=trio.Event)

    async def send(self, commands: list[Command]) -> list[Op]:
        """Send commands together, as soon as there is a node."""
        while self.node is None:
            await self.up.wait()
        node, count = self.node, len(self.disks)
        ops = [
            self.history.begin(command, node.policy, shard_of(identity_hash(command.identity), count))
            for command in commands
        ]
        node.router.route([Envelope(op.command, op, None) for op in ops])
        return ops

    async def live(self) -> None:
        """The whole run."""
        rng = self.rng
        async with trio.open_nursery() as callers:
            for number in range(rng.randint(3, 5)):
                callers.start_soon(Caller(f"c{number}", self, rng).run)
            for _ in range(rng.randint(1, 3)):
                await self._incarnation(rng.uniform(0.2, 1.2), self._crash)
                await trio.sleep(rng.random() * 0.3)
                self._change_something()
            await self._incarnation(rng.uniform(0.2, 0.8), self._come_to_rest)
            callers.cancel_scope.deadline = trio.current_time() + 60

    async def _incarnation(self, seconds: float, end: Callable[[trio.CancelScope], Any]) -> None:
        wall_ms = START_MS + int(trio.current_time() * 1000) + self.wall_step_ms
        policies = {NAMESPACE: self.policy}
        node = await start_node(self.disks, policies, wall_ms, self.settings, self.rng, self.history, self.shard_type)
        async with trio.open_nursery() as nursery:
            await nursery.start(node.router.run)
            self.node = node
            self.up.set()
            with trio.CancelScope() as chaos:
                async with trio.open_nursery() as trouble:
                    trouble.start_soon(self._trouble)
                    await trio.sleep(seconds)
                    chaos.cancel()
            await end(nursery.cancel_scope)

    async def _crash(self, shards: trio.CancelScope) -> None:
        """Every task of the node ends at once; nothing is told to anybody."""
        assert self.node is not None
        for shard in self.node.shards:
            self.history.violations += [f"forgotten without a word: {op}" for op in shard.forgotten()]
        self.node, self.up = None, trio.Event()
        shards.cancel()
        for op in self.history.ops:
            op.break_off()
        self.history.deciding_ms.clear()

    async def _come_to_rest(self, _shards: trio.CancelScope) -> None:
        """Trouble and callers stop; whatever is left undone after a long silence will never be done."""
        assert self.node is not None
        for disk in self.disks:
            disk.faults.clear()
            disk.failing_opens = disk.failing_reads = 0
            disk.before_commit = None
        self.stopping = True
        await trio.sleep(QUIET_S)
        self.rest_ms = self.node.clock.now_ms()
        self.node.router.close()

    async def _trouble(self) -> None:
        rng = self.rng
        for disk in self.disks:
            disk.before_commit = self._slow_disk
        while True:
            await trio.sleep(rng.random() * 0.25)
            disk = rng.choice(self.disks)
            roll = rng.random()
            if roll < 0.5:
                disk.faults.append(rng.choice(FAULTS))
            if 0.4 < roll < 0.6:
                disk.failing_opens = rng.randint(1, 2)
            if roll > 0.85:
                disk.failing_reads = 1

    async def _slow_disk(self, _batch: Batch) -> None:
        await trio.sleep(self.rng.choice((0, 0, 0.001, 0.005, 0.03)))
        if self.rng.random() < 0.02:
            await trio.sleep(0.2)

    def _change_something(self) -> None:
        rng = self.rng
        self.wall_step_ms += rng.choice((0, 0, -400, -50, 50, 400))
        if rng.random() < 0.5:
            self.policy = replace(self.policy, ttl_ms=rng.choice((60, 500, 2_000)), lease_ms=rng.choice((30, 300)))
        # Switching what a lapse means is mixed with long deadlines only: whether an alarm came by in between then
        # makes no difference that a caller could see.
        if rng.random() < 0.3 and self.policy.unresolved_ttl_ms > 60_000:
            self.policy = replace(self.policy, on_lease_expiry=rng.choice(list(OnLeaseExpiry)))
        if rng.random() < 0.3:
            self.policy = replace(self.policy, on_doubt=rng.choice(list(OnDoubt)))


def run_world(seed: int, shard_type: type[SimShard] = SimShard) -> World:
    """Run one seed to its end."""
    rng = Random(seed)
    # Importing hypothesis sets the flag as well; trio has no public name for it.
    trio_run: Any = trio._core._run
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio_run._r.seed(seed)
    policy = Policy(
        lease_ms=rng.choice((40, 300)),
        ttl_ms=rng.choice((100, 1_000)),
        on_lease_expiry=rng.choice((OnLeaseExpiry.RETRY, OnLeaseExpiry.RETRY, OnLeaseExpiry.HOLD)),
        on_doubt=rng.choice(list(OnDoubt)),
        unresolved_ttl_ms=rng.choice((150, 10**9)),
    )
    world = World(
        seed=seed,
        rng=rng,
        keys=[Identity("acme", NAMESPACE, f"k{number}") for number in range(rng.randint(2, 5))],
        disks=[MemoryDisk() for _ in range(rng.randint(2, 4))],
        policy=policy,
        settings=ShardSettings(
            mailbox_max=rng.choice((3, 64)),
            evict_after_ms=rng.choice((20, 200, 300_000)),
            batch_max=rng.choice((2, 64)),
        ),
        shard_type=shard_type,
    )
    trio.run(world.live, clock=MockClock(autojump_threshold=0))
    return world
