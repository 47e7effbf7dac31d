"""The office: who delivers what, and that a fault of ours ends nothing."""

# ruff: noqa: ARG001 - Time is virtual for whoever asks for the clock.

from __future__ import annotations

import trio
from trio.testing import MockClock

from idemactor.dispatch.office import destinations_of
from tests.dispatch.rig import answers, destination, running


def test_every_namespace_has_one_worker() -> None:
    all_of_them = {f"n{number}": destination() for number in range(50)}
    shares = [destinations_of(all_of_them, worker, 3) for worker in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(all_of_them)
    assert all(shares)
    assert destinations_of(all_of_them) == all_of_them


async def test_a_fault_of_ours_is_begun_again_after(autojump_clock: MockClock) -> None:
    async with running(destination(), answers()) as rig:
        wait, faults = rig.bell.wait, 0

        async def breaks(namespace: str, timeout_s: float) -> None:
            nonlocal faults
            if faults < 2:
                faults += 1
                raise RuntimeError("planted")
            await wait(namespace, timeout_s)

        rig.bell.wait = breaks  # type: ignore[method-assign,assignment]
        row = rig.shards.add("a")
        await rig.until_states("succeeded", most_s=60)
        await trio.sleep(5)
        later = rig.shards.add("b")
        await rig.until_states("succeeded", most_s=5)
        assert faults == 2
        assert rig.sent() == [row.operation_id, later.operation_id]


async def test_draining_before_it_began(autojump_clock: MockClock) -> None:
    async with running(destination(), answers()) as rig:
        rig.office.drain()
        rig.shards.add("a")
        with trio.fail_after(2):
            await rig.office.finished.wait()
        assert rig.shards.states() == {"a": "queued"}
