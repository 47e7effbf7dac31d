"""The evaluator that the alerts' tests stand on."""

from __future__ import annotations

from typing import Final

import pytest

from tests.observability.promql import History, evaluate

TARGET: Final = {"job": "j"}


def history(*expositions: str | None) -> History:
    found = History(TARGET)
    for minute, text in enumerate(expositions):
        found.add(minute * 60.0, None if text is None else "\n".join(text.split(";")) + "\n")
    return found


def values(expression: str, found: History) -> list[float]:
    return sorted(evaluate(expression, found).values())


def test_selectors_and_comparisons() -> None:
    found = history('a{x="1"} 3;a{x="2"} 5;b{x="1"} 1')
    assert values("a > 3", found) == [5]
    assert values('a{x="1"} == 3', found) == [3]
    assert values('a{x=~"1|2",x!="1"} >= 5', found) == [5]
    assert values("a != 3", found) == [5]
    assert values("a / b", found) == [3]
    assert values("a / 10 < 0.4", found) == [0.3]
    assert values("1 + a * 2", found) == [7, 11]
    assert values("a unless b", found) == [5]
    assert values("a > 1 and b == 1", found) == [3]
    assert values("a > 4 or b == 1", found) == [1, 5]
    # What both have is the left one's, and "or" binds less than "and".
    assert values("a + 1 > 0 or a", found) == [4, 6]
    assert values("b > 0 or a > 0 and b > 1", found) == [1]
    assert values('up{job="j"} == 1', found) == [1]
    assert values("nothing > 0", found) == []


def test_only_some_labels_are_compared() -> None:
    found = history('a{x="1",shard="7"} 3;a{x="2",shard="8"} 5;a 9;b{x="1"} 1;c 1')
    assert values("a and on(x) b", found) == [3]
    assert values("a unless on(j, x) b", found) == [5, 9]
    # One that neither has is the same in both.
    assert values("a and on(j, x) c", found) == [9]
    assert values("a and on(job) c", found) == [3, 5, 9]


def test_counters_grow_and_begin_anew() -> None:
    found = history("c_total 1", "c_total 4", "c_total 2")
    # 3, and then 2 after a restart, within 120 s.
    assert values("increase(c_total[2m]) > 0", found) == [5]
    assert values("rate(c_total[2m]) > 0", found) == [pytest.approx(5 / 120)]
    assert values("increase(c_total[1m]) > 0", found) == [2]
    assert values("increase(c_total[2m]) > 0", history("c_total 1")) == []


def test_a_series_that_is_gone_is_gone() -> None:
    found = history("a 1", None)
    assert values("a == 1", found) == []
    assert values("up == 0", found) == [0]


@pytest.mark.parametrize("wrong", ["a >", "sum(a) > 1", "a > 1 1", "histogram_quantile(0.9, a)", "a ~ 1", "(a"])
def test_what_it_does_not_know_it_refuses(wrong: str) -> None:
    with pytest.raises(AssertionError):
        evaluate(wrong, history("a 1"))
