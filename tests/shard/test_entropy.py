"""Random bits for operation ids: of the right size, and never the same ones twice."""

from __future__ import annotations

from idemactor.core.ids import ENTROPY_BITS
from idemactor.shard.entropy import DRAWS_AT_A_TIME, system_entropy


def test_draws_have_their_size_and_differ_across_refills() -> None:
    draw, other = system_entropy(), system_entropy()
    drawn = [draw() for _ in range(3 * DRAWS_AT_A_TIME)] + [other() for _ in range(DRAWS_AT_A_TIME)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= bits < 1 << ENTROPY_BITS for bits in drawn)
    # Every bit is drawn: that one of them is 0, or 1, in all of a thousand draws does not happen.
    assert [any(bits >> n & 1 for bits in drawn) for n in range(ENTROPY_BITS)] == [True] * ENTROPY_BITS
    assert not any(all(bits >> n & 1 for bits in drawn) for n in range(ENTROPY_BITS))
