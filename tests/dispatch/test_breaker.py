"""The breaker of a destination."""

from __future__ import annotations

from dataclasses import replace

from idemactor.dispatch.breaker import Breaker, BreakerState
from idemactor.dispatch.limits import FAILURES_TO_OPEN, PAUSE_MS_MAX, PAUSE_MS_MIN

A, B = object(), object()


def opened(now: int = 0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker = breaker.failed(A, now, 0.0)
    return breaker


def probing(now: int) -> Breaker:
    breaker = opened().begun(B, now)
    assert breaker is not None
    return breaker


def test_it_opens_after_failures_in_a_row_alone() -> None:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN * 3):
        breaker = breaker.failed(A, 0, 0.0).answered(A)
    assert breaker == Breaker()
    assert opened().state is BreakerState.OPEN


def test_closed_it_has_room_for_all() -> None:
    assert [Breaker().room(8, in_flight, 0) for in_flight in (0, 3, 8, 9)] == [8, 5, 0, 0]


def test_open_it_has_room_for_one_probe_after_the_pause() -> None:
    breaker = opened()
    assert breaker.room(8, 0, breaker.until - 1) == 0
    assert breaker.begun(B, breaker.until - 1) is None
    assert breaker.room(8, 0, breaker.until) == 1
    # What is under way still is waited for first.
    assert breaker.room(8, 1, breaker.until) == 0
    half_open = breaker.begun(B, breaker.until)
    assert half_open is not None
    assert half_open.state is BreakerState.HALF_OPEN
    assert half_open.room(8, 0, breaker.until) == 0
    assert half_open.begun(A, breaker.until) is None


def test_pauses_grow_and_end_growing() -> None:
    breaker, now, pauses = opened(), 0, []
    for _ in range(12):
        pauses.append(breaker.pause_ms)
        assert breaker.until - now == breaker.pause_ms // 2
        now = breaker.until
        begun = breaker.begun(B, now)
        assert begun is not None
        breaker = begun.failed(B, now, 0.0)
    assert pauses[:4] == [PAUSE_MS_MIN, 2 * PAUSE_MS_MIN, 4 * PAUSE_MS_MIN, 8 * PAUSE_MS_MIN]
    assert pauses[-1] == PAUSE_MS_MAX


def test_chance_spreads_half_of_a_pause() -> None:
    breaker = Breaker(failures=FAILURES_TO_OPEN - 1)
    assert breaker.failed(A, 0, 0.0).until == PAUSE_MS_MIN // 2
    assert breaker.failed(A, 0, 0.999999).until == PAUSE_MS_MIN - 1


def test_only_the_probe_decides() -> None:
    breaker = probing(10_000)
    assert breaker.answered(A) == breaker
    assert breaker.failed(A, 0, 0.0) == breaker
    assert breaker.given_up(A, 0) == breaker
    assert breaker.answered(B) == Breaker()
    assert opened().answered(A) == opened()
    assert opened().failed(A, 10**6, 0.0) == opened()


def test_a_probe_that_was_not_sent_leaves_it_to_the_next() -> None:
    breaker = probing(10_000).given_up(B, 10_000)
    assert breaker.room(8, 0, 10_000) == 1


def test_whoever_asks_to_wait_is_left_alone_for_that_long() -> None:
    breaker = Breaker().asked_to_wait(5_000)
    assert breaker.room(8, 0, 4_999) == 0
    assert breaker.room(8, 0, 5_000) == 1
    assert breaker.asked_to_wait(4_000).until == 5_000
    assert breaker.asked_to_wait(9_000).until == 9_000
    # The growth of its pauses is not forgotten over it.
    assert replace(probing(10_000), pause_ms=4_000).asked_to_wait(20_000).pause_ms == 4_000
