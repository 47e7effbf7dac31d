"""What is worth a word to somebody on call, and what is not; each once."""

from __future__ import annotations

import pytest

from idemactor.core.commands import Accept, Command, Commit, Doubt, Extend, Postpone, Release, Reserve
from idemactor.core.keys import Identity
from idemactor.core.replies import InFlight, Reserved
from idemactor.core.trouble import TRIES_STUCK, TROUBLES_MAX, WAITED_LONG_MS, Trouble, TroubleKind
from tests.core.situations import DONE, KEY, LEASE_MS, START
from tests.core.test_ledger import Desk, named
from tests.core.test_outboxes import claim, dispatch, shop, take


def seen(desk: Desk) -> list[tuple[TroubleKind, int, str | None]]:
    return [(each.kind, each.attempt, each.holder) for each in desk.work.troubles]


def test_a_lease_that_runs_out_is_told_once() -> None:
    desk = Desk()
    desk.one(Reserve(KEY, "a", holder="worker-1"))
    assert desk.work.troubles == []
    desk.now += LEASE_MS
    desk.sweep(KEY)
    [trouble] = desk.work.troubles
    record = next(iter(desk.disk.values())).record
    assert record is not None
    expected = Trouble(TroubleKind.LAPSED, KEY, record.operation_id, 1, "worker-1", START, desk.now)
    assert trouble == expected
    desk.now += 1
    desk.sweep(KEY)
    assert desk.work.troubles == []


@pytest.mark.parametrize("swept", [False, True])
def test_who_takes_over_is_told_with_whom_from(swept: bool) -> None:
    desk = Desk()
    desk.one(Reserve(KEY, "a", holder="worker-1"))
    desk.now += LEASE_MS
    if swept:
        desk.sweep(KEY)
    assert isinstance(desk.one(Reserve(KEY, "b", holder="worker-2")), Reserved)
    assert seen(desk) == [(TroubleKind.TAKEN_OVER, 1, "worker-1")]
    assert (desk.work.troubles[0].new_holder, desk.work.troubles[0].since) == ("worker-2", START)


def test_a_doubt_is_told_with_its_reason_and_not_again() -> None:
    desk = Desk()
    desk.one(Reserve(KEY, "a", holder="worker-1"))
    desk.one(Doubt(KEY, 1, "no answer"))
    assert seen(desk) == [(TroubleKind.IN_DOUBT, 1, "worker-1")]
    assert desk.work.troubles[0].reason == "no answer"
    desk.one(Doubt(KEY, 1, "still none"))
    assert desk.work.troubles == []


def test_what_goes_well_is_no_trouble() -> None:
    desk = Desk()
    first: list[Command] = [Reserve(KEY, "a"), Extend(KEY, 1, 2 * LEASE_MS), Commit(KEY, 1, DONE)]
    other = KEY._replace(key="other")
    for command in [*first, Reserve(other, "a"), Release(other, 2), Accept(other, "b")]:
        desk.one(command)
        assert desk.work.troubles == []


@pytest.mark.parametrize(("wait_ms", "told"), [(WAITED_LONG_MS - 1, False), (WAITED_LONG_MS, True)])
def test_a_caller_that_waited_long_in_vain(wait_ms: int, told: bool) -> None:
    desk = Desk()
    desk.one(Reserve(KEY, "a", lease_ms=60_000, holder="worker-1"))
    assert desk.ask(("late", Reserve(KEY, "b", wait_ms=wait_ms))) == []
    assert desk.ledger.waiting_for(KEY) == 1
    desk.now += wait_ms
    assert named(desk.time_out()) == [("late", InFlight.__name__)]
    assert seen(desk) == ([(TroubleKind.WAITED_LONG, 1, "worker-1")] if told else [])
    assert desk.ledger.waiting_for(KEY) == 0
    if told:
        assert (desk.work.troubles[0].waited_ms, desk.work.troubles[0].since) == (wait_ms, START)


def test_an_intent_that_does_not_get_through_is_told_at_the_fifth_the_tenth_the_twentieth_attempt() -> None:
    desk = shop()
    desk.one(dispatch())
    told = []
    for attempt in range(1, 4 * TRIES_STUCK + 1):
        [(_, token)] = claim(desk, take())
        assert desk.work.troubles == []
        desk.now += 1
        desk.one(Postpone(KEY, token, desk.now, perhaps_sent=False, reason=f"answer {attempt}"))
        told += desk.work.troubles
    assert [(each.kind, each.attempt, each.reason) for each in told] == [
        (TroubleKind.INTENT_STUCK, times * TRIES_STUCK, f"answer {times * TRIES_STUCK}") for times in (1, 2, 4)
    ]
    assert {each.since for each in told} == {START}


def test_a_storm_is_counted() -> None:
    desk = Desk()
    keys = [Identity("acme", "trade", f"k{number}") for number in range(TROUBLES_MAX + 3)]
    desk.ask(*(("me", Reserve(key, "a")) for key in keys))
    desk.now += LEASE_MS
    desk.sweep(*keys)
    assert (len(desk.work.troubles), desk.work.untold) == (TROUBLES_MAX, 3)
