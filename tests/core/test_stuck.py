"""What counts as stuck, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from idemactor.core.delivery import Delivery
from idemactor.core.record import Record, State
from idemactor.core.stuck import Why, why_stuck

NOW = 1_000_000
OLD = 60_000


def record(state: State = State.PENDING, **changes: Any) -> Record:
    given: dict[str, Any] = {
        "attempt": 1,
        "token": 7,
        "operation_id": "op",
        "first_seen_at": NOW - 300_000,
        "reserved_at": NOW,
    }
    return Record(state=state, **(given | changes))


def queued(accepted_at: int, due_at: int | None, attempt: int = 0, **changes: Any) -> Record:
    delivery = Delivery(1, None, due_at, NOW + 10**6)
    return record(first_seen_at=accepted_at, attempt=attempt, delivery=delivery, **changes)


@pytest.mark.parametrize("age", [0, OLD, OLD + 1])
def test_what_pends_counts_by_its_latest_attempt(age: int) -> None:
    found = why_stuck(record(reserved_at=NOW - age), NOW, OLD)
    assert found == ((Why.PENDING, NOW - age) if age > OLD else None)


@pytest.mark.parametrize("state", [State.LAPSED, State.DOUBTED])
def test_what_is_in_doubt_counts_at_once(state: State) -> None:
    assert why_stuck(record(state), NOW, OLD) == (Why.IN_DOUBT, NOW)
    assert why_stuck(queued(1, None, 3, state=state), NOW, OLD) == (Why.IN_DOUBT, NOW)


def test_what_is_committed_does_not() -> None:
    assert why_stuck(record(State.COMMITTED), NOW, 0) is None


def test_an_intent_counts_since_it_was_accepted_however_often_it_was_tried() -> None:
    assert why_stuck(queued(NOW - OLD - 1, NOW + 500, 9), NOW, OLD) == (Why.UNDELIVERED, NOW - OLD - 1)
    under_way = queued(NOW - OLD - 1, None, 9, lease_expires_at=NOW + 9)
    assert why_stuck(under_way, NOW, OLD) == (Why.UNDELIVERED, NOW - OLD - 1)


def test_an_intent_for_later_counts_since_then() -> None:
    assert why_stuck(queued(1, NOW + 500), NOW, OLD) is None
    assert why_stuck(queued(1, NOW - OLD), NOW, OLD) is None
    assert why_stuck(queued(1, NOW - OLD - 1), NOW, OLD) == (Why.UNDELIVERED, NOW - OLD - 1)
