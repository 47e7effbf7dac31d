"""The judge of histories is judged: it refuses what no right server may do, and nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from idemactor.core.replies import Reserved
from tests.histories.calls import Call
from tests.histories.checker import PLACES_MAX, TooManyOrders, search, unexplained
from tests.histories.examples import BAD, FIRST, GOOD, KEY, A, Example, call, commit, completed, in_flight, release


@pytest.mark.parametrize("example", GOOD, ids=lambda example: example.name)
def test_a_good_history_is_explained(example: Example) -> None:
    assert search(example.calls) is None


@pytest.mark.parametrize("example", BAD, ids=lambda example: example.name)
def test_a_bad_history_is_refused(example: Example) -> None:
    assert search(example.calls)


@pytest.mark.parametrize("example", [*GOOD, *BAD], ids=lambda example: example.name)
def test_the_order_in_which_calls_are_told_does_not_matter(example: Example) -> None:
    for calls in itertools.islice(itertools.permutations(example.calls), 24):
        assert bool(search(calls)) is (example in BAD)


@pytest.mark.parametrize("example", GOOD, ids=lambda example: example.name)
def test_any_answer_may_be_lost(example: Example) -> None:
    """Who was told less can be contradicted less. Where a token came from has to be known: nobody can guess one."""
    for number, told in enumerate(example.calls):
        if not isinstance(told.reply, Reserved):
            lost: Call = replace(told, reply=None, returned_ms=None)
            assert search([*example.calls[:number], lost, *example.calls[number + 1 :]]) is None


def test_each_key_is_judged_alone() -> None:
    first, second = BAD[0].calls
    assert unexplained([first, second])
    elsewhere = replace(second, command=replace(second.command, identity=KEY._replace(key="other")))
    assert not unexplained([first, elsewhere])


def test_a_refusal_says_what_could_not_be_placed() -> None:
    (text,) = unexplained([FIRST, call(10, 12, release(99), completed(1))])
    assert "Release" in text


def test_many_lost_calls_are_still_judged() -> None:
    lost = [call(10 + n, None, commit(99), None) for n in range(12)] + [call(30 + n, None, A, None) for n in range(10)]
    assert search([FIRST, *lost, call(60, 62, A, in_flight(1))])
    assert search([FIRST, *lost, call(60, 62, replace(A, request_id="z"), in_flight(1))]) is None


def test_a_search_that_is_too_long_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.histories.checker.PLACES_MAX", 1)
    assert PLACES_MAX > 1
    with pytest.raises(TooManyOrders):
        search(GOOD[0].calls)
