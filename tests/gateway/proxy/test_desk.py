"""Telling shards how an attempt ended, where the shard's owner is another process."""

from __future__ import annotations

import trio

from idemactor.core.commands import Commit
from idemactor.core.replies import Committed, Reserved
from idemactor.gateway.proxy.desk import Desk
from tests.shard.harness import identity, reserve
from tests.workers.rig import running
from tests.workers.test_peer import HERE, THERE

PATIENCE_MS = 3_600_000


async def test_an_owner_that_died_while_the_server_stops_is_not_asked_again() -> None:
    async with running(2) as workers, trio.open_nursery() as nursery:
        tokens = {}
        for key in (HERE, THERE):
            granted = await workers[0].one(reserve(key))
            assert isinstance(granted, Reserved)
            tokens[key] = granted.token
        workers[0].router.settle_only()
        talk = workers[0].peers[1]._talk
        assert talk is not None
        talk.scope.cancel()
        desk = Desk(workers[0].router, nursery)
        with trio.fail_after(10):
            assert await desk.settle(Commit(identity(THERE), tokens[THERE]), PATIENCE_MS) is None
            assert isinstance(await desk.settle(Commit(identity(HERE), tokens[HERE]), PATIENCE_MS), Committed)
