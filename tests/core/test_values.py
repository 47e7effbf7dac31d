"""Values: they compare, hash, copy and survive pickle as frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle

import pytest

from idemactor.core.commands import Reserve
from idemactor.core.keys import Identity
from idemactor.core.record import Outcome

VALUES = (Outcome(200, (("a", "b"),), b"body"), Reserve(Identity("t", "n", "k"), "r", wait_ms=3))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_they_survive_pickle_and_copies(value: object, protocol: int) -> None:
    for again in (pickle.loads(pickle.dumps(value, protocol)), copy.copy(value), copy.deepcopy(value)):
        assert again == value
        assert hash(again) == hash(value)


def test_they_have_slots_and_no_more() -> None:
    assert not hasattr(VALUES[0], "__dict__")
