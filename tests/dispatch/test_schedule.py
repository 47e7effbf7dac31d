"""Backoff, ``Retry-After`` and the reconciler's schedule."""

from __future__ import annotations

import random

import pytest

from idemactor.dispatch.destination import Retry
from idemactor.dispatch.limits import RETRY_AFTER_MS_MAX
from idemactor.dispatch.schedule import backoff_ms, check_is_due, retry_after_ms

NOW_MS = 1_445_412_480_000
"""2015-10-21T07:28:00Z"""


@pytest.mark.parametrize(
    ("attempt", "bound"), [(1, 200), (2, 400), (3, 800), (9, 51_200), (10, 60_000), (10**9, 60_000)]
)
def test_the_bound_grows_and_all_of_it_is_chance(attempt: int, bound: int) -> None:
    assert backoff_ms(Retry(), attempt, 0.0) == 0
    assert backoff_ms(Retry(), attempt, 0.5) == bound // 2
    assert bound - 1 <= backoff_ms(Retry(), attempt, 0.999999999) <= bound


def test_a_factor_of_one_does_not_grow() -> None:
    assert backoff_ms(Retry(first_ms=500, factor=1.0), 10**9, 0.5) == 250


@pytest.mark.parametrize(
    ("values", "wait_ms"),
    [
        (["0"], 0),
        (["120"], 120_000),
        ([" 7 "], 7_000),
        (["999999999"], RETRY_AFTER_MS_MAX),
        (["9" * 13], RETRY_AFTER_MS_MAX),
        (["9" * 5_000], RETRY_AFTER_MS_MAX),
        (["0" * 5_000 + "7"], 7_000),
        (["-1"], None),
        (["1.5"], None),
        (["soon"], None),
        ([""], None),
        ([], None),
        (["1", "2"], None),
        (["Wed, 21 Oct 2015 07:28:30 GMT"], 30_000),
        (["Wed, 21 Oct 2015 07:28:30 -0000"], 30_000),
        (["Wednesday, 21-Oct-15 07:29:00 GMT"], 60_000),
        (["Wed, 21 Oct 2015 07:00:00 GMT"], 0),
        (["Wed, 21 Oct 2099 07:28:00 GMT"], RETRY_AFTER_MS_MAX),
        (["Wed, 99 Oct 2015 07:28:00 GMT"], None),
    ],
)
def test_retry_after(values: list[str], wait_ms: int | None) -> None:
    assert retry_after_ms(values, NOW_MS) == wait_ms


def test_checks_double_and_then_keep_their_distance() -> None:
    retry = Retry(first_ms=1_000, longest_ms=8_000)
    seconds = [at for at in range(41) if check_is_due(0, (at - 1) * 1_000, at * 1_000, retry)]
    assert seconds == [1, 2, 4, 8, 16, 24, 32, 40]


def test_however_often_is_looked_no_check_is_missed_or_made_twice() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    retry, looked, found = Retry(first_ms=300, longest_ms=5_000), 0, 0
    while looked < 60_000:
        now = looked + chance.randrange(1, 200)
        found += check_is_due(0, looked, now, retry)
        looked = now
    # 0.3, 0.6, 1.2, 2.4, 4.8, 9.6 seconds, and every 5 seconds after that.
    assert found == 6 + (looked - 9_600) // 5_000


def test_whoever_was_away_asks_once() -> None:
    assert check_is_due(0, -(10**12), 10**9, Retry())
    assert not check_is_due(0, -(10**12), 199, Retry())
