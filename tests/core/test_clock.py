"""What time a server starts with, whatever the wall clock shows."""

from __future__ import annotations

import pytest

from idemactor.core.clock import EARLIEST_MS, Clock, ClockNotSet, ClockTooFarBehind, start_time

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000


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
