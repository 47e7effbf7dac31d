"""The index of an outbox against the plainest one there is: a list that is sorted anew for every question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from idemactor.core.delivery import Kind
from idemactor.core.outbox import ASIDE_MS, Item, Outbox, QueueKey

QUEUES: tuple[QueueKey, ...] = (
    ("acme", "trade", Kind.INTENT),
    ("acme", "trade", Kind.EVENT),
    ("zeta", "trade", Kind.INTENT),
)
QUEUE = QUEUES[0]
START = 1_000_000


@dataclass
class Plain:
    """An entry of the list."""

    queue: QueueKey
    id: int
    seq: int
    due_at: int | None
    order_key: str | None
    aside_until: int = 0
    has_moved: bool = False


class Against(RuleBasedStateMachine):
    """What the index and the list do side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox()
        self.plain: list[Plain] = []
        self.now = START
        self.seq = 0
        self.left: list[Plain] = []

    def head(self, queue: QueueKey, order_key: str) -> Plain | None:
        line = [each for each in self.plain if each.queue == queue and each.order_key == order_key]
        return min(line, key=lambda each: each.seq, default=None)

    def shown(self, queue: QueueKey) -> list[tuple[int, int, Plain]]:
        """When each of a queue that may be shown is, in order."""
        found = []
        for each in self.plain:
            if each.queue != queue or each.due_at is None:
                continue
            if each.order_key is None or self.head(queue, each.order_key) is each:
                found.append((max(each.due_at, each.aside_until), each.seq, each))
        return sorted(found, key=lambda item: item[:2])

    def due(self, queue: QueueKey) -> list[int]:
        return [each.id for at, _, each in self.shown(queue) if at <= self.now]

    times = st.one_of(st.none(), st.integers(-20, 60))
    order_keys = st.one_of(st.none(), st.sampled_from(["a", "b"]))

    @rule(queue=st.sampled_from(QUEUES), after=times, order_key=order_keys)
    def add(self, queue: QueueKey, after: int | None, order_key: str | None) -> None:
        self.seq += 1
        due = None if after is None else self.now + after
        self.outbox.add(queue, self.seq, self.seq, due, order_key)
        self.plain.append(Plain(queue, self.seq, self.seq, due, order_key))

    @precondition(lambda self: self.left)
    @rule(data=st.data(), after=times)
    def add_again(self, data: st.DataObject, after: int | None) -> None:
        """It left, and comes back with the place that it had: no line waits for that."""
        each = data.draw(st.sampled_from(self.left))
        self.left.remove(each)
        # The very time that it had makes it meet in the heap what was left of it.
        each.due_at = each.due_at if after is None else self.now + after
        self.outbox.add(each.queue, each.id, each.seq, each.due_at, None)
        self.plain.append(each)

    @precondition(lambda self: self.plain)
    @rule(data=st.data(), after=times)
    def change(self, data: st.DataObject, after: int | None) -> None:
        each = data.draw(st.sampled_from(self.plain))
        each.due_at = None if after is None else self.now + after
        assert self.outbox.change(each.queue[2], each.id, each.due_at)

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(self.plain))
        self.plain.remove(each)
        if each.order_key is None:
            self.left.append(each)
        line = (*each.queue, each.order_key) if each.order_key else None
        assert self.outbox.remove(each.queue[2], each.id) == line
        assert self.outbox.remove(each.queue[2], each.id) is None
        assert not self.outbox.change(each.queue[2], each.id, self.now)

    @rule(queue=st.sampled_from(QUEUES), order_key=st.sampled_from(["a", "b"]), back=st.booleans(), miss=st.booleans())
    def aside(self, queue: QueueKey, order_key: str, back: bool, miss: bool) -> None:
        head = self.head(queue, order_key)
        key = (*queue, order_key)
        if back:
            assert self.outbox.bring_back(key) is (head is not None and head.aside_until > 0)
            if head is not None:
                head.aside_until, head.has_moved = 0, True
            return
        self.outbox.set_aside(key, head.seq + miss if head else 1, self.now)
        if head is not None and not miss and not head.has_moved:
            head.aside_until = self.now + ASIDE_MS

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def ask_about(self, data: st.DataObject) -> None:
        """It is shown to somebody who asks the other shards about it."""
        each = data.draw(st.sampled_from(self.plain))
        item = self.outbox.find(each.queue[2], each.id)
        assert item is not None
        item.has_moved = each.has_moved = False

    @rule(ms=st.one_of(st.integers(0, 50), st.just(ASIDE_MS)))
    def time(self, ms: int) -> None:
        self.now += ms

    @rule(queue=st.sampled_from(QUEUES), limit=st.integers(0, 3), claims=st.booleans())
    def look(self, queue: QueueKey, limit: int, claims: bool) -> None:
        """Take a few; what is taken is due later, the rest is given back."""
        expected = self.due(queue)
        looked: list[Item] = []
        for item in self.outbox.due(queue, self.now):
            looked.append(item)
            if len(looked) > limit:
                break
        assert [item.id for item in looked] == expected[: limit + 1]
        for item in looked[:1] if claims else []:
            self.outbox.change(item.kind, item.id, self.now + 30)
            next(each for each in self.plain if each.queue == queue and each.id == item.id).due_at = self.now + 30
        self.outbox.put_back(looked)

    @invariant()
    def nothing_is_lost_or_shown_twice(self) -> None:
        for queue in QUEUES:
            looked = list(self.outbox.due(queue, self.now))
            self.outbox.put_back(looked)
            assert [item.id for item in looked] == self.due(queue)
            shown = self.shown(queue)
            assert self.outbox.next_at(queue) == (shown[0][0] if shown else None)

    @invariant()
    def it_counts(self) -> None:
        assert len(self.outbox) == len(self.plain)
        counted = {key: (entries) for key, entries, _ in self.outbox.counts(0)}
        assert counted == {q: n for q in QUEUES if (n := sum(each.queue == q for each in self.plain))}
        for tenant in ("acme", "zeta"):
            has = any(each.queue == (tenant, "trade", Kind.INTENT) for each in self.plain)
            assert (tenant in self.outbox.tenants("trade", Kind.INTENT)) is has

    @invariant()
    def it_knows_who_stands_behind_whom(self) -> None:
        for queue in QUEUES:
            for order_key in ("a", "b"):
                head = self.head(queue, order_key)
                key = (*queue, order_key)
                assert self.outbox.stands_behind(key, 10**9) is (head is not None)
                assert head is None or not self.outbox.stands_behind(key, head.seq)


Against.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstTheList = Against.TestCase


def ids(items: Iterable[Item]) -> list[int]:
    """Theirs."""
    return [item.id for item in items]


def test_intents_and_events_of_one_number_are_two() -> None:
    outbox = Outbox()
    for queue in QUEUES[:2]:
        outbox.add(queue, 7, 7, START, None)
    outbox.remove(Kind.EVENT, 7)
    assert outbox.find(Kind.EVENT, 7) is None
    assert ids(outbox.due(QUEUE, START)) == [7]


def test_a_heap_does_not_grow_with_what_is_tried_again() -> None:
    outbox = Outbox()
    for seq in range(10):
        outbox.add(QUEUE, seq, seq, START, "a" if seq < 5 else None)
    for turn in range(5_000):
        looked = list(outbox.due(QUEUE, START + turn))
        for item in looked:
            outbox.change(Kind.INTENT, item.id, START + turn + 1)
        outbox.set_aside((*QUEUE, "a"), 0, START + turn)
        outbox.bring_back((*QUEUE, "a"))
        outbox.put_back(looked)
    assert len(outbox._queues[QUEUE].heap) < 1_100
    assert ids(outbox.due(QUEUE, START + 5_000)) == [0, 5, 6, 7, 8, 9]


def test_a_line_does_not_grow_with_what_ends_behind_a_head_that_stays() -> None:
    outbox = Outbox()
    outbox.add(QUEUE, 1, 1, None, "a")
    for seq in range(2, 10_000):
        outbox.add(QUEUE, seq, seq, START, "a")
        outbox.remove(Kind.INTENT, seq - 1 if seq % 2 else seq)
        if seq % 2:
            outbox.remove(Kind.INTENT, seq)
    assert len(outbox) == 1
    assert len(outbox._queues[QUEUE].lines["a"].items) < 2_100
    outbox.add(QUEUE, 10_000, 10_000, START, "a")
    assert ids(outbox.due(QUEUE, START)) == []
    outbox.remove(Kind.INTENT, 1)
    assert ids(outbox.due(QUEUE, START)) == [10_000]


def test_the_next_in_line_is_shown_although_another_one_is_aside() -> None:
    outbox = Outbox()
    outbox.add(QUEUE, 1, 1, START, "a")
    outbox.add(QUEUE, 2, 2, START, "a")
    outbox.set_aside((*QUEUE, "a"), 1, START)
    outbox.set_aside((*QUEUE, "b"), 1, START)
    assert ids(outbox.due(QUEUE, START)) == []
    assert outbox.next_at(QUEUE) == START + ASIDE_MS
    outbox.remove(Kind.INTENT, 1)
    assert ids(outbox.due(QUEUE, START)) == [2]


def test_what_comes_back_meets_what_was_left_of_it() -> None:
    """One place in line, one time, two entries in the heap: they must not be compared."""
    outbox = Outbox()
    for seq in (1, 2, 3):
        outbox.add(QUEUE, seq, seq, START, None)
    outbox.remove(Kind.INTENT, 2)
    outbox.add(QUEUE, 2, 2, START, None)
    assert ids(outbox.due(QUEUE, START)) == [1, 2, 3]


def test_the_one_that_waits_longest_is_wanted_since_its_time_came() -> None:
    outbox, key = Outbox(), ("acme", "trade", Kind.INTENT)
    assert list(outbox.counts(1_000)) == []
    for number, (at_ms, not_before) in enumerate([(100, 5_000), (200, 700), (300, 0), (400, 0), (500, 350)]):
        outbox.add(key, number, at_ms * 1_000, at_ms, None, not_before=not_before)
    assert list(outbox.counts(600)) == [(key, 5, 300)]
    outbox.remove(Kind.INTENT, 2)
    assert list(outbox.counts(600)) == [(key, 4, 400)]
    for number in (3, 4):
        outbox.remove(Kind.INTENT, number)
    assert list(outbox.counts(600)) == [(key, 2, None)]
    assert list(outbox.counts(800)) == [(key, 2, 700)]
    # Put off or not, it has waited since then.
    outbox.change(Kind.INTENT, 1, 9_000)
    assert list(outbox.counts(8_000)) == [(key, 2, 700)]
    assert outbox.oldest(key, 1) == [0]
    assert outbox.oldest(("acme", "pay", Kind.INTENT), 5) == []
