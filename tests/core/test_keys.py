"""Keys, identities and their hashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.keys import (
    Identity,
    InvalidKey,
    InvalidNamespace,
    check_key,
    check_namespace,
    identity_hash,
    shard_of,
)


@pytest.mark.parametrize(
    "key",
    ["a", "Order-17", " padded ", "a b", "BINANCE:BTCUSDT", "é", "e\u0301", "\u200b", "😀", "x" * 256, "😀" * 256],
)
def test_keys_that_are_taken(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "at least one"),
        ("x" * 257, "at most 256"),
        ("é" * 257, "at most 256"),
        (" ", "white space"),
        (" \u2003\u3000", "white space"),
        ("a\nb", "control"),
        ("a\x00", "control"),
        ("\x1f", "control"),
        ("\x7f", "control"),
        ("a\x80", "control"),
        ("a\x9f", "control"),
        ("é\x85", "control"),
        ("a\ud800", "surrogate"),
        ("\udfff", "surrogate"),
    ],
)
def test_keys_that_are_refused(key: str, why: str) -> None:
    with pytest.raises(InvalidKey, match=why):
        check_key(key)


def test_a_refusal_never_quotes_the_key() -> None:
    with pytest.raises(InvalidKey) as refusal:
        check_key("sk_live_secret\n")
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("name", ["a", "trade", "a0_-", "z" + "9" * 62])
def test_namespace_names_that_are_taken(name: str) -> None:
    check_namespace(name)


@pytest.mark.parametrize("name", ["", "A", "0a", "_a", "-a", "a.b", "a b", "a\n", "é", "aé", "a" * 64])
def test_namespace_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidNamespace):
        check_namespace(name)


def test_the_hash_is_what_is_on_disk() -> None:
    """These numbers are stored by every data directory: a change here orphans records."""
    assert identity_hash(Identity("default", "trade", "order-1")) == -922259549190887237
    assert identity_hash(Identity("default", "trade", "é😀")) == 1902135154118526036


def test_the_hash_fits_a_signed_64_bit_column() -> None:
    hashes = [identity_hash(Identity("t", "n", str(number))) for number in range(2_000)]
    assert all(-(2**63) <= hashed < 2**63 for hashed in hashes)
    assert min(hashes) < 0 < max(hashes)
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Identity("a", "b", "c"), Identity("a", "bc", "")),
        (Identity("ab", "c", "d"), Identity("a", "bc", "d")),
        (Identity("a", "1:b", "c"), Identity("a1", ":b", "c")),
        (Identity("a", "b", "1:c"), Identity("a", "b1", ":c")),
        (Identity("a", "b", "key"), Identity("a", "b", "Key")),
        (Identity("a", "b", "é"), Identity("a", "b", "e\u0301")),
    ],
)
def test_no_two_identities_feed_the_same_bytes(one: Identity, other: Identity) -> None:
    assert identity_hash(one) != identity_hash(other)


PART = st.text(alphabet=st.sampled_from("a1:2é😀"), max_size=4)


@given(st.tuples(PART, PART, PART), st.tuples(PART, PART, PART))
def test_the_hash_is_equal_exactly_where_the_identity_is(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (identity_hash(Identity(*one)) == identity_hash(Identity(*other))) == (one == other)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 64))
def test_every_hash_has_a_shard(hashed: int, shards: int) -> None:
    assert 0 <= shard_of(hashed, shards) < shards


def test_shards_are_filled_evenly() -> None:
    counts = [0] * 4
    for number in range(8_000):
        counts[shard_of(identity_hash(Identity("default", "trade", f"order-{number}")), 4)] += 1
    assert all(1_800 < count < 2_200 for count in counts), counts
