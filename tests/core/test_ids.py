"""Operation ids: UUIDs of version 7 (RFC 9562)."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.ids import ENTROPY_BITS, uuid7

times = st.integers(0, 2**48 - 1)
randoms = st.integers(0, 2**ENTROPY_BITS - 1)


def test_the_vector_of_rfc_9562() -> None:
    """RFC 9562, appendix A.6: rand_a 0xCC3, rand_b 0b01 and 0x8C4DC0C0C07398F, Tuesday, February 22, 2022."""
    entropy = 0xCC3 << 62 | 0x18C4DC0C0C07398F
    assert uuid7(0x017F22E279B0, entropy) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
    assert uuid7(1_645_557_742_000, entropy) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@pytest.mark.parametrize(
    ("now", "entropy", "text"),
    [
        (0, 0, "00000000-0000-7000-8000-000000000000"),
        (2**48 - 1, 2**ENTROPY_BITS - 1, "ffffffff-ffff-7fff-bfff-ffffffffffff"),
        (0, 1, "00000000-0000-7000-8000-000000000001"),
        (0, 1 << 62, "00000000-0000-7001-8000-000000000000"),
        (1, 0, "00000000-0001-7000-8000-000000000000"),
    ],
)
def test_the_fields_are_where_they_belong(now: int, entropy: int, text: str) -> None:
    assert uuid7(now, entropy) == text


@pytest.mark.parametrize("extra", [1 << ENTROPY_BITS, 1 << 200])
def test_what_does_not_fit_spoils_neither_version_nor_variant(extra: int) -> None:
    assert uuid7(5, 7 | extra) == uuid7(5, 7)
    assert uuid7(5 | 1 << 48, 7) == uuid7(5, 7)


@given(times, randoms)
def test_every_id_is_a_uuid_of_version_7_that_keeps_all_it_was_given(now: int, entropy: int) -> None:
    made = uuid7(now, entropy)
    parsed = uuid.UUID(made)
    assert str(parsed) == made
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == now
    assert (parsed.int >> 64 & 0xFFF) << 62 | parsed.int & (1 << 62) - 1 == entropy


@given(times, times, randoms, randoms)
def test_ids_sort_as_their_times_do(one: int, other: int, first: int, second: int) -> None:
    if one < other:
        assert uuid7(one, first) < uuid7(other, second)
