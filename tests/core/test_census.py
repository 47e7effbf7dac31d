"""The key counts of a process: what the quota asks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.census import Census
from idemactor.core.tally import TallyKey

ACME: TallyKey = ("acme", "trade")
ZETA: TallyKey = ("zeta", "trade")


def test_nothing_was_counted_of_whom_nobody_knows() -> None:
    assert Census().total(ACME) == 0


def test_shards_add_up_and_tenants_stay_apart() -> None:
    census = Census()
    census.add(0, ACME, 2)
    census.add(1, ACME, 3)
    census.add(1, ZETA, 1)
    assert (census.total(ACME), census.total(ZETA), census.total(("acme", "payments"))) == (5, 1, 0)


def test_a_shard_that_is_read_anew_forgets_what_it_had_counted() -> None:
    census = Census()
    census.replace(0, {ACME: 7, ZETA: 1})
    census.replace(1, {ACME: 2})
    census.add(0, ACME, 5)
    census.replace(0, {ACME: 4})
    assert census.total(ACME) == 6
    assert census.total(ZETA) == 0
    census.add(0, ACME, 1)
    census.replace(0, {})
    assert census.total(ACME) == 2


def test_counts_that_were_given_are_not_changed() -> None:
    given_counts = {ACME: 1}
    census = Census()
    census.replace(0, given_counts)
    census.add(0, ACME, 1)
    assert given_counts == {ACME: 1}


keys = st.sampled_from((ACME, ZETA))
shards = st.integers(0, 2)
additions = st.tuples(shards, keys, st.integers(-3, 3))
replacements = st.tuples(shards, st.dictionaries(keys, st.integers(0, 9)))


@given(st.lists(st.one_of(additions, replacements)))
def test_the_total_is_the_sum_over_the_shards(
    steps: list[tuple[int, TallyKey, int] | tuple[int, dict[TallyKey, int]]],
) -> None:
    census = Census()
    counts: dict[int, Counter[TallyKey]] = {shard: Counter() for shard in range(3)}
    for step in steps:
        if len(step) == 3:
            shard, key, delta = step
            census.add(shard, key, delta)
            counts[shard][key] += delta
        else:
            census.replace(*step)
            counts[step[0]] = Counter(step[1])
        for key in (ACME, ZETA):
            assert census.total(key) == sum(counts[shard][key] for shard in counts)
