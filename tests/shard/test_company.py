"""Whether several tenants are served is known from who asks, and is forgotten after a while."""

from __future__ import annotations

import trio

from idemactor.shard.company import ALONE_AFTER_S, GIVE_WAY_S, HURRY_S, Company
from tests.shard.harness import on_mock_time


@on_mock_time
async def test_one_tenant_is_alone_however_much_it_asks() -> None:
    company = Company()
    assert not company.shared
    for _ in range(3):
        company.heard("a")
        await trio.sleep(1)
        assert not company.shared


@on_mock_time
async def test_two_share_until_only_one_was_heard_for_long() -> None:
    company = Company()
    company.heard("a")
    company.heard("b")
    assert company.shared
    await trio.sleep(ALONE_AFTER_S / 2)
    company.heard("a")
    await trio.sleep(ALONE_AFTER_S - 1)
    company.heard("a")
    assert company.shared
    await trio.sleep(2)
    company.heard("a")
    assert not company.shared
    company.heard("b")
    assert company.shared


@on_mock_time
async def test_who_gives_way_goes_on_once_no_shard_is_pressed() -> None:
    company = Company()
    company.press(0)
    company.press(1)
    company.press(1)
    came: list[float] = []

    async def give_way() -> None:
        await company.give_way()
        came.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        started = trio.current_time()
        nursery.start_soon(give_way)
        await trio.sleep(GIVE_WAY_S / 4)
        company.relax(1)
        company.relax(1)
        assert company.pressed
        await trio.sleep(GIVE_WAY_S / 4)
        company.relax(0)
        assert not company.pressed
    assert came == [started + GIVE_WAY_S / 2]


@on_mock_time
async def test_somebody_in_a_hurry_is_remembered_for_a_while() -> None:
    company = Company()
    assert not company.hurried
    company.press(0)
    company.relax(0)
    await trio.sleep(HURRY_S / 2)
    assert company.hurried
    await trio.sleep(HURRY_S / 2)
    assert not company.hurried


@on_mock_time
async def test_who_gives_way_does_so_for_a_moment_only() -> None:
    company = Company()
    company.press(0)
    started = trio.current_time()
    await company.give_way()
    assert trio.current_time() == started + GIVE_WAY_S
