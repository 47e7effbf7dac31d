"""The alarm heap: what is due comes, in order of time, and what memory cannot hold is left to the disk."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from idemactor.core.keys import Identity
from idemactor.shard.alarms import NEVER, AlarmHeap


def key(number: int) -> Identity:
    return Identity("acme", "trade", f"k{number:03}")


def test_an_empty_heap_waits_for_nothing() -> None:
    heap = AlarmHeap()
    assert (len(heap), heap.next_at(), heap.due(NEVER, 10), heap.exhausted) == (0, None, [], False)


def test_alarms_come_in_order_of_time_and_at_their_time() -> None:
    heap = AlarmHeap()
    for number, at in ((1, 30), (2, 10), (3, 20)):
        heap.set(key(number), at)
    assert heap.next_at() == 10
    assert heap.due(9, 10) == []
    assert heap.due(10, 10) == [key(2)]
    assert heap.due(30, 10) == [key(3), key(1)]
    assert (len(heap), heap.next_at()) == (0, None)


def test_no_more_are_taken_than_asked_for() -> None:
    heap = AlarmHeap()
    for number in range(5):
        heap.set(key(number), 10)
    assert heap.due(10, 2) == [key(0), key(1)]
    assert heap.due(10, 0) == []
    assert heap.due(10, 9) == [key(2), key(3), key(4)]


def test_an_alarm_that_moved_comes_once_at_its_new_time() -> None:
    heap = AlarmHeap()
    heap.set(key(1), 10)
    heap.set(key(1), 30)
    assert heap.next_at() == 30
    heap.set(key(1), 20)
    heap.set(key(1), 10)
    assert len(heap) == 1
    assert heap.due(100, 10) == [key(1)]
    assert heap.due(100, 10) == []


def test_an_alarm_that_was_removed_never_comes() -> None:
    heap = AlarmHeap()
    heap.set(key(1), 10)
    heap.set(key(2), 20)
    heap.set(key(1), None)
    heap.set(key(3), None)
    assert heap.next_at() == 20
    assert heap.due(100, 10) == [key(2)]


def test_backlog_counts_what_is_overdue() -> None:
    heap = AlarmHeap()
    for number in range(4):
        heap.set(key(number), 10 * number)
    heap.set(key(0), None)
    assert [heap.backlog(now) for now in (9, 10, 20, 99)] == [0, 1, 2, 3]


def test_what_lies_beyond_the_horizon_is_left_to_the_disk() -> None:
    heap = AlarmHeap(horizon=100)
    heap.set(key(1), 100)
    heap.set(key(2), 99)
    assert len(heap) == 1
    heap.set(key(2), 101)
    assert len(heap) == 0
    assert heap.exhausted
    assert heap.next_at() == 100


def test_a_full_refill_sets_the_horizon_and_a_short_one_lifts_it() -> None:
    heap = AlarmHeap()
    heap.refill([(10, key(1)), (20, key(2))], 2)
    assert heap.horizon == 20
    heap.set(key(3), 20)
    heap.set(key(4), 19)
    assert heap.due(20, 10) == [key(1), key(4), key(2)]
    assert heap.exhausted
    assert heap.next_at() == 20
    heap.refill([(20, key(3))], 2)
    assert heap.horizon == NEVER
    assert heap.due(20, 10) == [key(3)]
    assert not heap.exhausted
    assert heap.next_at() is None


def test_a_refill_starts_over() -> None:
    heap = AlarmHeap()
    heap.set(key(1), 5)
    heap.refill([(10, key(2))], 9)
    assert heap.due(100, 10) == [key(2)]


def test_too_many_keep_the_nearer_half() -> None:
    heap = AlarmHeap(alarms_max=4)
    for number in range(5):
        heap.set(key(number), 10 * number)
    assert heap.horizon == 20
    assert heap.due(100, 10) == [key(0), key(1)]
    assert heap.exhausted
    assert heap.next_at() == 20


def test_too_many_at_one_millisecond_are_all_left_to_the_disk() -> None:
    heap = AlarmHeap(alarms_max=4)
    for number in range(9):
        heap.set(key(number), 10)
    assert len(heap) == 0
    assert heap.exhausted
    assert heap.next_at() == 10
    heap.refill([(10, key(number)) for number in range(4)], 4)
    assert heap.due(10, 9) == [key(number) for number in range(4)]
    assert heap.exhausted


def test_an_alarm_that_keeps_moving_does_not_grow_the_heap() -> None:
    heap = AlarmHeap(alarms_max=4)
    for at in range(1_000):
        heap.set(key(0), at)
    assert len(heap._heap) <= 9
    assert heap.due(999, 10) == [key(0)]


moves = st.tuples(st.just("set"), st.integers(0, 11), st.one_of(st.none(), st.integers(0, 20)))
takings = st.tuples(st.just("due"), st.integers(1, 6), st.integers(0, 20))
refills = st.tuples(st.just("refill"), st.integers(1, 5), st.none())
all_at_once = [("set", number, 7) for number in range(12)]


@given(st.lists(st.one_of(moves, moves, takings, refills), max_size=60), st.integers(1, 6))
@example([*all_at_once, ("due", 5, 7), ("refill", 5, None), ("due", 6, 7)], 3)
@example([*all_at_once, ("refill", 1, None), ("set", 3, 6), ("set", 4, None), ("due", 6, 7)], 1)
def test_the_heap_with_its_disk_is_a_sorted_list(steps: list[tuple[str, int, int | None]], alarms_max: int) -> None:
    """Whatever happens, draining the heap (and the disk behind it) brings each alarm once, none early, in order."""
    heap, disk = AlarmHeap(alarms_max=alarms_max), {}  # type: tuple[AlarmHeap, dict[Identity, int]]
    for what, number, at in steps:
        if what == "set":
            disk.pop(key(number), None)
            if at is not None:
                disk[key(number)] = at
            heap.set(key(number), at)
        elif what == "due":
            assert at is not None
            take(heap, disk, at, number)
        else:
            refill(heap, disk, number)
        assert len(heap) <= max(alarms_max, 12)
        nearest = min(disk.values(), default=None)
        assert heap.next_at() == nearest or (heap.exhausted and heap.horizon <= (nearest or NEVER))
        assert {identity for identity, at in disk.items() if at < heap.horizon} <= set(heap._at)
    drain(heap, disk)


def take(heap: AlarmHeap, disk: dict[Identity, int], now: int, limit: int) -> None:
    """What is due leaves memory and disk alike; nothing nearer is passed over."""
    taken = heap.due(now, limit)
    times = [disk.pop(identity) for identity in taken]
    assert times == sorted(times)
    assert all(at <= now for at in times)
    if len(taken) < limit:
        assert not any(at <= now and at < heap.horizon for at in disk.values())
    elif times:
        assert not any(at < times[-1] for at in disk.values())


def refill(heap: AlarmHeap, disk: dict[Identity, int], limit: int) -> None:
    heap.refill(sorted((at, identity) for identity, at in disk.items())[:limit], limit)


def drain(heap: AlarmHeap, disk: dict[Identity, int]) -> None:
    """Step by step, as a shard does: what is due, then the disk where memory is exhausted."""
    expected, seen = sorted(disk.values()), []
    for _ in range(100):
        at = heap.next_at()
        if at is None:
            break
        if heap.exhausted:
            refill(heap, disk, 3)
            continue
        for identity in heap.due(at, 2):
            seen.append(disk.pop(identity))
    assert disk == {}
    assert seen == expected
