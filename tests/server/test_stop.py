"""Signals that say to stop: the first one is heard, and none ends what is being tidied up."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from idemactor.server.stop import STOP_SIGNALS, told_to_stop


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_the_first_signal_is_heard_and_all_others_change_nothing(number: signal.Signals) -> None:
    with told_to_stop() as told:
        assert not told.is_set()
        signal.raise_signal(number)
        with trio.fail_after(10):
            await told.wait()
        for again in STOP_SIGNALS:
            signal.raise_signal(again)
        await trio.testing.wait_all_tasks_blocked()
    for again in STOP_SIGNALS:
        signal.raise_signal(again)


async def test_where_none_came_they_mean_what_they_meant_before() -> None:
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    with pytest.raises(ValueError, match="a bug"), told_to_stop():
        raise ValueError("a bug")
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


async def test_a_signal_before_anybody_was_served_ends_the_start() -> None:
    reached: list[str] = []
    with told_to_stop() as told, told.starting:
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep_forever()
        reached.append("served")
    assert told.starting.cancelled_caught
    assert not reached


async def test_a_signal_afterwards_cuts_nothing_off() -> None:
    with told_to_stop() as told, told.starting:
        told.started()
        signal.raise_signal(signal.SIGTERM)
        with trio.fail_after(10):
            await told.wait()
        await trio.testing.wait_all_tasks_blocked()
    assert not told.starting.cancelled_caught
