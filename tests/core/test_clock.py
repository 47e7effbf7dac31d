"""What time a server starts with, whatever the wall clock shows; and places in line: none twice, in any process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.clock import EARLIEST_MS, Clock, ClockNotSet, ClockTooFarBehind, Sequencer, start_time

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40)


def test_the_wall_clock_counts_where_it_is_ahead_of_the_disk() -> None:
    assert start_time(NOW, 0, 0) == NOW
    assert start_time(NOW + 5 * HOUR_MS, NOW, 0) == NOW + 5 * HOUR_MS


def test_a_little_behind_the_disks_time_goes_on() -> None:
    assert start_time(NOW - HOUR_MS, NOW, HOUR_MS) == NOW


def test_further_behind_is_refused() -> None:
    with pytest.raises(ClockTooFarBehind) as caught:
        start_time(NOW - HOUR_MS - 1, NOW, HOUR_MS)
    assert caught.value.behind_ms == HOUR_MS + 1


@pytest.mark.parametrize("wall_ms", [0, 12_345, EARLIEST_MS - 1])
@pytest.mark.parametrize("latest_ms", [0, NOW])
def test_a_clock_that_nobody_has_set_is_refused_whatever_the_settings_say(wall_ms: int, latest_ms: int) -> None:
    with pytest.raises(ClockNotSet):
        start_time(wall_ms, latest_ms, 2 * NOW)


def test_a_clock_goes_on_by_what_nobody_can_set() -> None:
    seconds = [100.0]
    clock = Clock(NOW, lambda: seconds[0])
    seconds[0] += 7_200.5
    assert clock.now_ms() == NOW + 7_200_500


@given(STEPS)
def test_no_two_processes_give_the_same_place(steps: list[tuple[int, int]]) -> None:
    now_us = 1_000
    sequencers = [Sequencer(lambda: now_us, process, 3) for process in range(3)]
    given_out: list[int] = []
    for process, passed_us in steps:
        now_us += passed_us
        given_out.append(sequencers[process].next())
    assert len(set(given_out)) == len(given_out)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40), st.integers(1, 5), st.data())
def test_places_of_a_process_rise_and_keep_to_the_time(passed: list[int], processes: int, data: st.DataObject) -> None:
    now_us = 1_000
    sequencer = Sequencer(lambda: now_us, data.draw(st.integers(0, processes - 1)), processes)
    last = 0
    for passed_us in passed:
        now_us += passed_us
        place = sequencer.next()
        assert place > last
        assert now_us <= place < max(now_us, last + 1) + processes
        last = place


def test_a_place_that_was_given_before_a_restart_is_behind_no_more() -> None:
    sequencer = Sequencer(lambda: 1_000, 1, 2)
    sequencer.observe(5_000)
    assert sequencer.next() == 5_001
    assert sequencer.next() == 5_003
