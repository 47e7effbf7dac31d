"""The broom: one holder, handed on in the order of asking, and never to one who is gone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest
import trio

from idemactor.core.commands import Accept, Get
from idemactor.core.policy import Policy
from idemactor.core.replies import Unknown
from idemactor.shard import alarm_clock
from idemactor.shard.actor import SWEEPS_MAX, Shard
from idemactor.shard.broom import Broom
from idemactor.shard.company import GIVE_WAY_S
from idemactor.storage.memory import MemoryDisk
from tests.shard.harness import identity, on_mock_time, reserve, running


def test_one_has_it_and_the_next_ones_get_it_in_the_order_of_asking() -> None:
    broom, handed = Broom(), list[str]()

    def ask(name: str) -> bool:
        return broom.take(functools.partial(handed.append, name))

    assert ask("a")
    assert not ask("b")
    assert not ask("c")
    broom.give_back()
    assert handed == ["b"]
    assert not ask("d")
    broom.give_back()
    broom.give_back()
    assert handed == ["b", "c", "d"]
    broom.give_back()
    assert ask("e")
    assert handed == ["b", "c", "d"]


def test_who_stopped_waiting_is_passed_over() -> None:
    broom, handed = Broom(), list[str]()
    asks = {name: functools.partial(handed.append, name) for name in "abc"}
    for ask in asks.values():
        broom.take(ask)
    broom.stop_waiting(asks["b"])
    broom.give_back()
    assert handed == ["c"]


@on_mock_time
async def test_every_shard_has_its_turn_with_it() -> None:
    disks = [MemoryDisk() for _ in range(4)]
    make = functools.partial(Shard, broom=Broom())
    async with running(*disks, policy=Policy(lease_ms=1_000, unresolved_ttl_ms=2_000), make=make) as rig:
        await rig.all(*(reserve(f"key-{n}") for n in range(800)))
        assert all(disk.entries for disk in disks)
        await trio.sleep(4)
        assert not any(disk.entries for disk in disks)


@on_mock_time
async def test_a_shard_that_ends_holds_nobody_up() -> None:
    broom = Broom()
    disks = [MemoryDisk(), MemoryDisk()]
    make = functools.partial(Shard, broom=broom)
    async with running(*disks, policy=Policy(lease_ms=1_000, unresolved_ttl_ms=2_000), make=make) as rig:
        await rig.all(*(reserve(f"key-{n}") for n in range(100)))
        # Somebody else is at it while both come due; one of them is closed before it has had its turn.
        assert broom.take(lambda: None)
        await trio.sleep(1.5)
        rig.router.shards[0].close()
        await trio.sleep(0.1)
        broom.give_back()
        await trio.sleep(2)
        assert not disks[1].entries
        assert broom.take(lambda: None)


@on_mock_time
async def test_without_it_a_turn_deals_with_as_many_alarms_as_it_has_commands() -> None:
    """So what ends does not pile up where commands never cease, and no turn is longer than they make it."""
    broom = Broom()
    disks = [MemoryDisk(), MemoryDisk()]
    make = functools.partial(Shard, broom=broom)
    async with running(*disks, policy=Policy(lease_ms=1_000, ttl_ms=1_000), make=make) as rig:
        await rig.all(*(Accept(identity(f"key-{n}")) for n in range(100)))
        # Read once, where alarms begin: only what is in memory is done without it.
        await trio.sleep(0.5)
        assert broom.take(lambda: None)
        await trio.sleep(1)
        before = [len(disk.entries) for disk in disks]
        assert sum(before) == 100
        await rig.one(Get(identity("none")), Unknown)
        assert sum(len(disk.entries) for disk in disks) == 99
        await rig.all(*(Get(identity(f"none-{n}")) for n in range(30)))
        assert sum(len(disk.entries) for disk in disks) == 69
        await trio.sleep(60)
        assert sum(len(disk.entries) for disk in disks) == 69
        broom.give_back()
        await trio.sleep(1)
        assert not any(disk.entries for disk in disks)


@on_mock_time
async def test_what_is_not_in_memory_is_read_for_them_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_clock, "ALARMS_REFILL", 10)
    broom, disk, policy = Broom(), MemoryDisk(), Policy(lease_ms=1_000, ttl_ms=1_000)
    make = functools.partial(Shard, broom=broom)
    async with running(disk, policy=policy, make=make) as rig:
        await rig.all(*(Accept(identity(f"key-{n}")) for n in range(100)))
    async with running(disk, policy=policy, make=make) as rig:
        await trio.sleep(0.5)
        assert broom.take(lambda: None)
        await trio.sleep(1)
        for number in range(10):
            await rig.all(*(Get(identity(f"none-{number}-{n}")) for n in range(5)))
        assert len(disk.entries) == 50


@on_mock_time
async def test_while_somebody_is_in_a_hurry_every_other_turn_leaves_it_to_others() -> None:
    broom, disk = Broom(), MemoryDisk()
    make = functools.partial(Shard, broom=broom)
    async with running(disk, policy=Policy(lease_ms=1_000, ttl_ms=1_000), make=make) as rig:
        await rig.all(*(Accept(identity(f"key-{n}")) for n in range(3 * SWEEPS_MAX)))
        await trio.sleep(0.5)
        assert broom.take(lambda: None)
        await trio.sleep(1)
        shard = rig.router.shards[0]
        assert isinstance(shard, Shard)
        rig.router.company.press(7)
        broom.give_back()
        left = [len(disk.entries)]
        seen = shard.turns
        while left[-1]:
            await trio.sleep(GIVE_WAY_S / 4)
            if shard.turns > seen:
                seen = shard.turns
                left.append(len(disk.entries))
        assert left == [3 * SWEEPS_MAX, 3 * SWEEPS_MAX, 2 * SWEEPS_MAX, 2 * SWEEPS_MAX, SWEEPS_MAX, SWEEPS_MAX, 0]


@on_mock_time
async def test_nobody_who_is_in_a_hurry_only_while_turns_decide_holds_it_up_for_ever() -> None:
    disk = MemoryDisk()
    async with running(disk, policy=Policy(lease_ms=1_000, ttl_ms=1_000)) as rig:
        await rig.all(*(Accept(identity(f"key-{n}")) for n in range(100)))
        await trio.sleep(0.5)
        company = rig.router.company
        # Before each turn, in its end, and after it.
        steps: list[Callable[[], object]] = [lambda: company.press(7), lambda: company.relax(7), lambda: None]
        glances = itertools.cycle(steps)
        company.press(7)
        company.relax(7)

        def glance() -> None:
            next(glances)()

        company.glances.append(glance)
        await trio.sleep(1)
        assert not disk.entries
