"""Places in line: none twice, in any process, and behind those that were given before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.clock import Sequencer

STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40)


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
