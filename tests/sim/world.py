"""One run of the simulator: callers, nodes, and everything that can go wrong with disks, clocks and processes.

The run is a function of its seed. Time is trio's mock clock; no file, no thread and no real time is involved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from unittest import mock

import trio
from trio.testing import MockClock

from idemactor.core.clock import Clock
from idemactor.core.commands import Command
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.policy import DispatchPolicy, OnDoubt, OnLeaseExpiry, Policy
from idemactor.core.queries import Query, TakenEvent
from idemactor.shard import taking
from idemactor.shard.actor import ShardSettings
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.memory import Fault
from idemactor.workers import mesh
from tests.sim.callers import Caller
from tests.sim.destination import BLIND, SAFE, Destination
from tests.sim.dispatchers import Dispatcher
from tests.sim.fleet import Fleet, FleetNode
from tests.sim.history import History, Op
from tests.sim.node import Node, SimDisk, SimShard, start_node
from tests.sim.relays import Question, Reconciler, Relay
from tests.sim.wires import SimPeer

NAMESPACE: Final = "trade"
START_MS: Final = 1_700_000_000_000
QUIET_S: Final = 65
"""How long the world is left alone at the end: longer than the longest back-off, lease and ttl of a run."""

HOUR_MS: Final = 3_600_000
RESTING_TICK_MS: Final = 5_000
"""How often workers tell each other what has changed where nothing does any more."""
FULL_S: Final = 0.4
"""The longest that a disk stays full before somebody makes room."""
STEPS_MS: Final = (0, 0, -400, -50, 50, 400)
GREAT_STEPS_MS: Final = (-11 * HOUR_MS, -HOUR_MS, HOUR_MS)
"""What somebody does to the wall clock between two starts."""

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
    disks: list[SimDisk]
    policy: Policy
    settings: ShardSettings
    shard_type: type[SimShard]
    peer_type: type[SimPeer] | None = None
    history: History = field(default_factory=History)
    tokens: dict[Identity, list[int]] = field(default_factory=dict)
    stopping: bool = False
    dispatching: bool = False
    recognised: bool = True
    incarnation: int = 0
    destination: Destination = field(default_factory=lambda: Destination(Random(0)))
    dispatches: History = field(default_factory=History)
    questions: set[Question] = field(default_factory=set)
    shown: list[tuple[str, TakenEvent]] = field(default_factory=list)
    wall_step_ms: int = 0
    rest_ms: int = 0
    node: Node | FleetNode | None = None
    up: trio.Event = field(default_factory=trio.Event)

    async def send(self, commands: list[Command]) -> list[Op]:
        """Send commands together, as soon as there is a node."""
        while self.node is None:
            await self.up.wait()
        node, count = self.node, len(self.disks)
        history = self.history if commands[0].identity.namespace == NAMESPACE else self.dispatches
        ops = [
            history.begin(command, node.policy, shard_of(identity_hash(command.identity), count))
            for command in commands
        ]
        node.router.route([Envelope(op.command, op, None) for op in ops])
        return ops

    async def present(self) -> None:
        """Wait for a node."""
        while self.node is None:
            await self.up.wait()

    async def ask(self, shard: int, query: Query) -> Answer | None:
        """Ask a shard beside the state table, as soon as there is a node; None where the node died first."""
        await self.present()
        assert self.node is not None
        question = Question(query)
        self.questions.add(question)
        self.node.router.ask(shard, Envelope(query, question, None))
        await question.done.wait()
        self.questions.discard(question)
        return question.answer

    def now_ms(self) -> int:
        """The server's time, or about that while there is none."""
        return self.node.clock.now_ms() if self.node else START_MS + int(trio.current_time() * 1000)

    @property
    def shard_count(self) -> int:
        """How many shards there are."""
        return len(self.disks)

    @property
    def drained(self) -> bool:
        """Whether the callers have stopped and nothing that was dispatched is left to be done."""
        return self.stopping and not any(disk.events or _open(disk) for disk in self.disks)

    def _start_dispatching(self, nursery: trio.Nursery) -> None:
        rng = self.rng
        self.destination.nursery = nursery
        for number in range(rng.randint(1, 3)):
            nursery.start_soon(Dispatcher(f"d{number}", self, rng).run)
        for namespace in (SAFE, BLIND):
            for number in range(rng.randint(1, 2)):
                relay = Relay(f"{namespace}{number}", self, rng, namespace, nursery, inside=number == 0)
                nursery.start_soon(relay.run)
        nursery.start_soon(Reconciler("reconciler", self, rng).run)

    def _policies(self) -> dict[str, Policy]:
        if not self.dispatching:
            return {NAMESPACE: self.policy}
        forever = replace(self.policy, ttl_ms=10**9)
        return {
            NAMESPACE: self.policy,
            SAFE: replace(forever, dispatch=DispatchPolicy(recognised=self.recognised, horizon_ms=20_000)),
            BLIND: replace(forever, dispatch=DispatchPolicy(recognised=False, horizon_ms=20_000)),
        }

    async def live(self) -> None:
        """The whole run."""
        rng = self.rng
        async with trio.open_nursery() as callers:
            if self.dispatching:
                self._start_dispatching(callers)
            for number in range(1 if self.dispatching else rng.randint(3, 5)):
                callers.start_soon(Caller(f"c{number}", self, rng).run)
            for _ in range(rng.randint(1, 3)):
                await self._incarnation(rng.uniform(0.2, 1.2), self._crash)
                await trio.sleep(rng.random() * 0.3)
                self._change_something()
            await self._incarnation(rng.uniform(0.2, 0.8), self._come_to_rest)
            callers.cancel_scope.deadline = trio.current_time() + 60

    async def _incarnation(self, seconds: float, end: Callable[[trio.CancelScope], Any]) -> None:
        wall_ms = START_MS + int(trio.current_time() * 1000) + self.wall_step_ms
        node = await self._start(wall_ms)
        async with trio.open_nursery() as nursery:
            await nursery.start(node.router.run)
            self.node = node
            self.up.set()
            with trio.CancelScope() as chaos:
                async with trio.open_nursery() as trouble:
                    trouble.start_soon(self._trouble)
                    if isinstance(node, FleetNode):
                        trouble.start_soon(node.router.trouble)
                    await trio.sleep(seconds)
                    chaos.cancel()
            await end(nursery.cancel_scope)

    async def _start(self, wall_ms: int) -> Node | FleetNode:
        policies, rng, history = self._policies(), self.rng, self.history
        if self.peer_type is None:
            return await start_node(
                self.disks, policies, wall_ms, self.settings, rng, history, self.shard_type, NAMESPACE
            )
        clock = Clock(max(wall_ms, *(disk.latest_ms for disk in self.disks)), trio.current_time)
        histories = (history, self.dispatches)
        fleet = Fleet(
            self.disks, policies, clock, self.settings, rng, histories, self.questions, self.shard_type, self.peer_type
        )
        return FleetNode(policies[NAMESPACE], fleet, clock)

    async def _crash(self, shards: trio.CancelScope) -> None:
        """Every task of the node ends at once; nothing is told to anybody."""
        assert self.node is not None
        for shard in self.node.shards:
            self.history.violations += [f"forgotten without a word: {op}" for op in shard.forgotten()]
        self.node, self.up = None, trio.Event()
        self.incarnation += 1
        shards.cancel()
        for op in (*self.history.ops, *self.dispatches.ops):
            op.break_off()
        for question in self.questions:
            question.break_off()
        self.history.deciding_ms.clear()

    async def _come_to_rest(self, _shards: trio.CancelScope) -> None:
        """Trouble and callers stop; whatever is left undone after a long silence will never be done."""
        assert self.node is not None
        for disk in self.disks:
            disk.faults.clear()
            disk.failing_opens = disk.failing_reads = 0
            disk.before_commit = None
            disk.full = False
        self.stopping = self.destination.calm = True
        ticking: Any = mesh
        ticking.TICK_MS = RESTING_TICK_MS
        await trio.sleep(QUIET_S)
        self.rest_ms = self.node.clock.now_ms()
        if isinstance(self.node, FleetNode):
            self.history.violations += self.node.router.apart()
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
            if rng.random() < 0.1:
                await self._full_disk(disk)

    async def _full_disk(self, disk: SimDisk) -> None:
        """No room for a while; whoever serves meanwhile has to find out by itself that there is again."""
        disk.full = True
        try:
            await trio.sleep(self.rng.random() * FULL_S)
        finally:
            # A disk that was full when the process died may be so when the next one starts.
            disk.full = self.rng.random() < 0.1 and not self.dispatching

    async def _slow_disk(self, _batch: Batch) -> None:
        await trio.sleep(self.rng.choice((0, 0, 0.001, 0.005, 0.03)))
        if self.rng.random() < 0.02:
            await trio.sleep(0.2)

    def _change_something(self) -> None:
        rng = self.rng
        self.wall_step_ms += rng.choice(STEPS_MS)
        # Relays and reconcilers reckon with small steps; everything else has to stand hours.
        if not self.dispatching and rng.random() < 0.15:
            self.wall_step_ms += rng.choice(GREAT_STEPS_MS)
        if rng.random() < 0.5:
            self.policy = replace(self.policy, ttl_ms=rng.choice((60, 500, 2_000)), lease_ms=rng.choice((30, 300)))
        # Switching what a lapse means is mixed with long deadlines only: whether an alarm came by in between then
        # makes no difference that a caller could see.
        if rng.random() < 0.3 and self.policy.unresolved_ttl_ms > 60_000:
            self.policy = replace(self.policy, on_lease_expiry=rng.choice(list(OnLeaseExpiry)))
        if rng.random() < 0.3:
            self.policy = replace(self.policy, on_doubt=rng.choice(list(OnDoubt)))
        if self.dispatching and rng.random() < 0.3:
            self.recognised = not self.recognised


def _open(disk: SimDisk) -> bool:
    """Whether a disk has something dispatched that has not ended."""
    records = (entry.record for entry in disk.entries.values())
    return any(r is not None and r.delivery is not None and r.delivery.ending is None for r in records)


def run_world(
    seed: int,
    shard_type: type[SimShard] = SimShard,
    *,
    dispatching: bool = False,
    peer_type: type[SimPeer] | None = None,
) -> World:
    """Run one seed to its end; with ``peer_type`` on a server of several workers."""
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
        disks=[SimDisk() for _ in range(rng.randint(2, 4))],
        policy=policy,
        settings=ShardSettings(
            mailbox_max=rng.choice((3, 64)),
            evict_after_ms=rng.choice((20, 200, 300_000)),
            batch_max=rng.choice((2, 64)),
        ),
        shard_type=shard_type,
        peer_type=peer_type,
        dispatching=dispatching,
        destination=Destination(rng),
    )
    world.dispatches.deciding_ms = world.history.deciding_ms
    patched = mock.patch.object(mesh, "TICK_MS", mesh.TICK_MS)
    with (
        patched,
        mock.patch.object(taking, "RECALLED_AT_A_TIME", 1 + seed % 3 if dispatching else taking.RECALLED_AT_A_TIME),
    ):
        trio.run(world.live, clock=MockClock(autojump_threshold=0))
    return world
