"""Signals that say to stop: the first one is heard, and none ends what is being tidied up. SIGHUP reads tokens anew."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from idemactor.server import stop
from idemactor.server.stop import SIGNALS, STOP_SIGNALS, told_to_stop


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def never() -> None:
    raise AssertionError("nobody asked for that")


def terminal_at(*found: bool) -> Callable[[], bool]:
    """What is found each time that somebody looks for the terminal."""
    looks = iter(found)
    return lambda: next(looks)


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_the_first_signal_is_heard_and_all_others_change_nothing(number: signal.Signals) -> None:
    with told_to_stop() as told:
        assert not told.is_set()
        signal.raise_signal(number)
        with trio.fail_after(10):
            await told.wait()
        for again in SIGNALS:
            signal.raise_signal(again)
        await trio.testing.wait_all_tasks_blocked()
    for again in SIGNALS:
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


async def test_sighup_during_the_start_is_heeded_as_soon_as_somebody_can() -> None:
    reloads: list[int] = []
    with told_to_stop() as told, told.starting:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        await trio.testing.wait_all_tasks_blocked()
        told.reload_with(lambda: reloads.append(1))
        assert reloads == [1]
    assert not told.starting.cancelled_caught


async def test_whoever_stops_does_not_reload() -> None:
    with told_to_stop() as told:
        told.reload_with(never)
        told.started()
        # Both before the loop turns: the second is heard after the first, and still before anybody ignores it.
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        await trio.testing.wait_all_tasks_blocked()
        assert told.is_set()


@pytest.mark.parametrize("terminal", [(False, False), (True, True)])
async def test_sighup_reads_anew_each_time(terminal: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_has_terminal", terminal_at(*terminal, terminal[1]))
    reloads: list[int] = []
    with told_to_stop() as told:
        told.reload_with(lambda: reloads.append(1))
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
            await trio.testing.wait_all_tasks_blocked()
        assert len(reloads) == 2
        assert not told.is_set()


async def test_sighup_of_a_terminal_that_is_gone_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_has_terminal", terminal_at(True, False))
    with told_to_stop() as told:
        signal.raise_signal(signal.SIGHUP)
        with trio.fail_after(10):
            await told.wait()


async def test_under_nohup_the_end_of_a_terminal_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_has_terminal", terminal_at(True, False))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    reloads: list[int] = []
    with told_to_stop() as told:
        told.reload_with(lambda: reloads.append(1))
        signal.raise_signal(signal.SIGHUP)
        await trio.testing.wait_all_tasks_blocked()
        assert reloads == [1]
        assert not told.is_set()


def test_a_terminal_that_closes_is_seen() -> None:
    told, tell = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGHUP, lambda *_: None)
            seen = stop.Terminal()
            os.write(tell, b"open" if not seen.closed else b"lost")
            signal.pause()
            os.write(tell, b"gone" if seen.closed else b"there")
        finally:
            os._exit(0)
    os.close(tell)
    assert os.read(told, 10) == b"open"
    os.close(terminal)
    assert os.read(told, 10) == b"gone"
    os.waitpid(pid, 0)
    os.close(told)
