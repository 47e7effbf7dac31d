"""Whether several tenants are served is known from who asks, and is forgotten after a while."""

from __future__ import annotations

import trio

from idemactor.shard.company import ALONE_AFTER_S, Company
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
