"""One run of the simulator: callers, nodes, and everything that can go wrong with disks, clocks and processes.

The run is a function of its seed. Time is trio's mock clock; no file, no thread and no real time is involved.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from unittest import mock

import trio
from trio.testing import MockClock

from idemactor.core import ledger
from idemactor.core.clock import Clock
from idemactor.core.commands import Command, Reserve
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.policy import DispatchPolicy, OnDoubt, OnDuplicate, OnLeaseExpiry, Policy
from idemactor.core.queries import Query, TakenEvent
from idemactor.errors import StorageError
from idemactor.shard import taking
from idemactor.shard.actor import TURN_BYTES_MAX, ShardSettings
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.storage import journaled
from idemactor.storage.base import Batch
from idemactor.storage.memory import MemoryDisk
from idemactor.workers import mesh
from tests.sim.callers import Caller
from tests.sim.checks import stopping
from tests.sim.destination import BLIND, SAFE, Destination
from tests.sim.disks import FAULTS, SLOW_S, Power, SimDisk, SimJournalDisk, Storage
from tests.sim.dispatchers import Dispatcher
from tests.sim.fleet import STARTS_MAX, Fleet, FleetNode
from tests.sim.history import History, Op
from tests.sim.node import Node, SimShard, start_node
from tests.sim.operators import Operator
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

DRAINS_S: Final = (0, 0.02, 0.3, 1.6)
"""How long a server that was told to stop still has what is under way told to it."""
STILL_WAITING_S: Final = 1.3
"""Who waits for longer than this after a server was told to stop was not answered."""
JOURNALED: Final = 0.75
"""How many of the servers have a journal; in the others each shard writes to its disk at once."""
BODY_BYTES: Final = 700
"""A batch above this goes past the journal, in runs in which limits are low."""
STOPS_S: Final = 20
"""A server that takes longer than this to stop does not."""


@dataclass
class World:
    """What one seed makes: all that the checkers are given once it is over."""

    seed: int
    rng: Random
    keys: list[Identity]
    storage: Storage
    policy: Policy
    settings: ShardSettings
    parts: Parts
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
    acknowledged: dict[Identity, set[int]] = field(default_factory=dict)
    shown: list[tuple[str, TakenEvent]] = field(default_factory=list)
    wall_step_ms: int = 0
    rest_ms: int = 0
    node: Node | FleetNode | None = None
    resting: list[SimShard] = field(default_factory=list)
    life: trio.CancelScope = field(default_factory=trio.CancelScope)
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
    def disks(self) -> list[SimDisk]:
        """The file of each shard; what a journal holds beside them is in them once the run is over."""
        return self.storage.disks

    @property
    def shard_count(self) -> int:
        """How many shards there are."""
        return len(self.disks)

    @property
    def drained(self) -> bool:
        """Whether the callers have stopped and nothing that was dispatched is left to be done."""
        images = (self.storage.image(shard) for shard in range(self.shard_count))
        return self.stopping and not any(image.events or _open(image) for image in images)

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
        forever = replace(self.policy, ttl_ms=10**9, outcome_max_bytes=10**6, records_max=10**6)
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
            callers.start_soon(Operator("operator", self, rng).run)
            for _ in range(rng.randint(1, 3)):
                end = self._stop if rng.random() < 0.3 else self._crash
                await self._incarnation(rng.uniform(0.2, 1.2), end)
                await trio.sleep(rng.random() * 0.3)
                self._change_something()
            await self._incarnation(rng.uniform(0.2, 0.8), self._come_to_rest)
            callers.cancel_scope.deadline = trio.current_time() + 60

    async def _incarnation(self, seconds: float, end: Callable[[Node | FleetNode], Awaitable[None]]) -> None:
        node = await self._start()
        async with trio.open_nursery() as nursery:
            await nursery.start(node.router.run)
            self.node, self.life = node, nursery.cancel_scope
            self.up.set()
            async with trio.open_nursery() as trouble:
                trouble.start_soon(self._trouble)
                if isinstance(node, FleetNode):
                    trouble.start_soon(node.router.trouble)
                await trio.sleep(seconds)
                if end == self._stop:
                    await self._drain(node)
                trouble.cancel_scope.cancel()
            await end(node)
            with trio.move_on_after(STOPS_S):
                await node.ended.wait()
            if not node.ended.is_set():
                self.history.violations.append("the server does not stop")
            nursery.cancel_scope.cancel()
        if end == self._stop:
            self._gone()

    async def _start(self) -> Node | FleetNode:
        """Start it, as often as it takes; it may die while it starts."""
        for _ in range(STARTS_MAX):
            power = Power()
            patience_s = self.rng.random() * 0.03 if self.rng.random() < 0.1 else math.inf
            try:
                with trio.move_on_after(patience_s):
                    return await self._made(power)
            except StorageError:
                # A full disk does not go away by itself.
                for disk in self.disks:
                    disk.full = disk.full and self.rng.random() < 0.5
            power.cut()
            await trio.sleep(self.rng.random() * 0.1)
        raise RuntimeError("the server cannot be started")

    async def _made(self, power: Power) -> Node | FleetNode:
        policies, history, parts = self._policies(), self.history, self.parts
        if self.peer_type is None:
            return await start_node(
                self.storage, power, policies, self._clock_at, self.settings, history, parts.shard_type, NAMESPACE
            )
        workers = self.rng.randint(2, 3)
        await self.storage.hand_out(workers, power)
        latest_ms = max(self.storage.image(shard).latest_ms for shard in range(self.shard_count))
        clock = self._clock_at(latest_ms)
        histories = (history, self.dispatches)
        fleet = Fleet(
            workers, self.storage, policies, clock, self.settings, self.rng, histories, self.questions,
            parts.shard_type, self.peer_type,
        )  # fmt: skip
        return FleetNode(policies[NAMESPACE], fleet, clock)

    def _clock_at(self, latest_ms: int) -> Clock:
        """The server's clock: the later of the wall clock and of the disks, and from then on what no step moves."""
        return self.parts.clock(max(self.wall_ms(), latest_ms), trio.current_time, self.wall_ms)

    def wall_ms(self) -> int:
        """What the clock on the wall shows, milliseconds since the epoch."""
        return START_MS + int(trio.current_time() * 1000) + self.wall_step_ms

    async def _crash(self, node: Node | FleetNode) -> None:
        """Every task of the node ends at once; nothing is told to anybody."""
        for shard in node.shards:
            self.history.violations += [f"forgotten without a word: {op}" for op in shard.forgotten()]
        node.power.cut()
        self.life.cancel()
        self._gone()

    def _gone(self) -> None:
        """There is no server any more: whoever still waited has lost the connection."""
        self.node, self.up = None, trio.Event()
        self.incarnation += 1
        for op in (*self.history.ops, *self.dispatches.ops):
            op.break_off()
        for question in self.questions:
            question.break_off()
        self.history.deciding_ms.clear()

    async def _drain(self, node: Node | FleetNode) -> None:
        """It was told to stop: those who wait are answered, and what is under way may be told to have ended."""
        # Somebody has just come, and somebody else waits for that to be over.
        key = Identity("acme", NAMESPACE, f"last-{self.incarnation}")
        await self.send([Reserve(key, lease_ms=3_000), Reserve(key, wait_ms=4_000)])
        await trio.sleep(self.rng.choice((0, 0.1)))
        node.settle_only()
        histories = (self.history, self.dispatches)
        told = [history.stamp() for history in histories]
        seconds = self.rng.choice(DRAINS_S)
        await trio.sleep(seconds)
        for history, stamp in zip(histories, told, strict=True):
            self.history.violations += stopping.check(history, stamp, waits=seconds <= STILL_WAITING_S)

    async def _stop(self, node: Node | FleetNode) -> None:
        """It takes nothing more, answers everybody, writes what it has, and ends."""
        node.router.close()
        with trio.move_on_after(STOPS_S):
            await node.ended.wait()
        left = [op for op in (*self.history.ops, *self.dispatches.ops) if op.answered is None and not op.closed]
        self.history.violations += [f"a stop left this without an answer: {op}" for op in left]

    async def _come_to_rest(self, node: Node | FleetNode) -> None:
        """Trouble and callers stop; whatever is left undone after a long silence will never be done."""
        self.storage.mend()
        self.stopping = self.destination.calm = True
        ticking: Any = mesh
        ticking.TICK_MS = RESTING_TICK_MS
        await trio.sleep(QUIET_S)
        self.rest_ms = node.clock.now_ms()
        if isinstance(node, FleetNode):
            self.history.violations += node.router.apart()
        self.resting = list(node.shards)
        node.router.close()

    async def _trouble(self) -> None:
        rng = self.rng
        for disk in self.disks:
            disk.before_commit = self._slow_disk
        while True:
            await trio.sleep(rng.random() * 0.25)
            disks: list[SimDisk | SimJournalDisk] = [*self.disks, *self.storage.journals]
            place = rng.choice(disks)
            roll = rng.random()
            if roll < 0.5:
                place.faults.append(rng.choice(FAULTS))
            if 0.4 < roll < 0.6:
                place.failing_opens = rng.randint(1, 2)
            if roll > 0.85:
                place.failing_reads = 1
            if isinstance(place, SimJournalDisk) and rng.random() < 0.3:
                place.torn = 1
            if rng.random() < 0.1:
                await self._full_disk(place)
            if rng.random() < 0.1:
                # Somebody sets the clock on the wall while the server runs: nobody may notice.
                self._step_the_wall()

    async def _full_disk(self, disk: SimDisk | SimJournalDisk) -> None:
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
            await trio.sleep(SLOW_S)

    def _step_the_wall(self) -> None:
        self.wall_step_ms += self.rng.choice(STEPS_MS)
        # Relays and reconcilers reckon with small steps; everything else has to stand hours.
        if not self.dispatching and self.rng.random() < 0.15:
            self.wall_step_ms += self.rng.choice(GREAT_STEPS_MS)

    def _change_something(self) -> None:
        rng = self.rng
        self._step_the_wall()
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


def _open(disk: MemoryDisk) -> bool:
    """Whether a disk has something dispatched that has not ended."""
    records = (entry.record for entry in disk.entries.values())
    return any(r is not None and r.delivery is not None and r.delivery.ending is None for r in records)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server is made of; a mistake is planted by exchanging a part."""

    shard_type: type[SimShard] = SimShard
    clock: Callable[[int, Callable[[], float], Callable[[], int]], Clock] = lambda start, steady, _wall: Clock(
        start, steady
    )
    storage_type: type[Storage] = Storage


SOUND: Final = Parts()
"""Without mistakes."""


def run_world(
    seed: int, parts: Parts = SOUND, *, dispatching: bool = False, peer_type: type[SimPeer] | None = None
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
        on_duplicate=rng.choice(list(OnDuplicate)),
        outcome_max_bytes=rng.choice((10**6, 13)),
        records_max=rng.choice((10**6, 10**6, 2)),
        lease_total_max_ms=rng.choice((10**9, 250)),
    )
    storage = parts.storage_type([SimDisk() for _ in range(rng.randint(2, 4))], rng)
    if rng.random() < JOURNALED:
        storage.journals = [SimJournalDisk() for _ in range(1 if peer_type is None else rng.randint(2, 3))]
    world = World(
        seed=seed,
        rng=rng,
        keys=[Identity("acme", NAMESPACE, f"k{number}") for number in range(rng.randint(2, 5))],
        storage=storage,
        policy=policy,
        settings=ShardSettings(
            mailbox_max=rng.choice((3, 64)),
            evict_after_ms=rng.choice((20, 200, 300_000)),
            batch_max=rng.choice((2, 64)),
            # By the seed itself: what else comes of it stays as it is. With 1 a turn ends behind the first key that is
            # found on disk.
            turn_bytes_max=1 if seed % 3 == 1 else TURN_BYTES_MAX,
        ),
        parts=parts,
        peer_type=peer_type,
        dispatching=dispatching,
        destination=Destination(rng),
    )
    world.dispatches.deciding_ms = world.history.deciding_ms
    limits: list[tuple[Any, str, int]] = [(mesh, "TICK_MS", mesh.TICK_MS)]
    if dispatching:
        limits.append((taking, "RECALLED_AT_A_TIME", 1 + seed % 3))
    if seed % 4 == 0:
        limits += [(journaled, "BODY_BYTES_MAX", BODY_BYTES), (ledger, "WAITERS_MAX", 2)]
    with contextlib.ExitStack() as patched:
        for module, name, value in limits:
            patched.enter_context(mock.patch.object(module, name, value))
        trio.run(world.live, clock=MockClock(autojump_threshold=0))
    storage.settle()
    return world
