"""From threads into a loop and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import pytest

from idemactor.client.bridge import Bridge, Pending
from idemactor.client.errors import ClientClosed

both = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@contextmanager
def bridged(backend: str) -> Iterator[Bridge]:
    """A bridge into a loop that runs in a thread of its own."""
    ready: Pending[Bridge] = Pending()

    async def main() -> None:
        bridge = Bridge()
        await bridge.serve(lambda: ready.give(bridge))

    thread = threading.Thread(target=anyio.run, args=(main,), kwargs={"backend": backend})
    thread.start()
    bridge = ready.wait()
    try:
        yield bridge
    finally:
        bridge.stop()
        thread.join()


async def echo(value: int) -> int:
    await anyio.lowlevel.checkpoint()
    return value


@both
def test_results_and_exceptions_come_back_to_who_asked(backend: str) -> None:
    async def fail() -> None:
        raise KeyError("mine")

    with bridged(backend) as bridge:
        found: list[list[int]] = []

        def work(number: int) -> None:
            found.append([bridge.call(lambda n=n: echo(n)) for n in range(number, number + 200)])  # type: ignore[misc]

        threads = [threading.Thread(target=work, args=(1_000 * number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [list(range(1_000 * n, 1_000 * n + 200)) for n in range(8)]
        with pytest.raises(KeyError, match="mine"):
            bridge.call(fail)
        assert bridge._open is not None
        assert len(bridge._open) <= 1, "only the latest may be on its way out"


@both
def test_what_is_under_way_when_it_stops_is_told_so_and_nothing_begins_later(backend: str) -> None:
    with bridged(backend) as bridge:
        began: Pending[None] = Pending()
        midway: Pending[None] = Pending()

        async def wait_for_ever() -> None:
            began.give(None)
            await anyio.sleep_forever()

        task = bridge.start(wait_for_ever, midway)
        began.wait()
        bridge.stop()
        for waited in (task.over, midway):
            with pytest.raises(ClientClosed):
                waited.wait()
    with pytest.raises(ClientClosed):
        bridge.call(lambda: echo(1))
    bridge.soon(lambda: pytest.fail("nobody is there"))


@both
def test_what_is_ordered_while_it_stops_is_told_so(backend: str) -> None:
    def order(bridge: Bridge, told: list[str]) -> None:
        for _ in range(10_000):
            try:
                bridge.call(lambda: echo(1))
            except ClientClosed:
                told.append("closed")
                return

    told: list[str] = []
    with bridged(backend) as bridge:
        threads = [threading.Thread(target=order, args=(bridge, told)) for _ in range(4)]
        for thread in threads:
            thread.start()
        bridge.call(lambda: echo(1))
    for thread in threads:
        thread.join()
    assert told == ["closed"] * 4


@both
def test_a_task_that_is_cancelled_ends(backend: str) -> None:
    with bridged(backend) as bridge:
        ended: Pending[str] = Pending()

        async def wait_for_ever() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.give("ended")

        task = bridge.start(wait_for_ever)
        bridge.soon(task.cancel)
        with pytest.raises(ClientClosed):
            task.over.wait()
        assert ended.done


@both
def test_the_loop_does_not_wait_for_itself(backend: str) -> None:
    async def call_back(call: Callable[[], object]) -> None:
        call()

    with bridged(backend) as bridge, pytest.raises(RuntimeError, match="itself"):
        bridge.call(lambda: call_back(lambda: bridge.call(lambda: echo(1))))
