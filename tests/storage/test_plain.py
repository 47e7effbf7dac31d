"""Every value has a form in JSON, and comes back from it as it was."""

from __future__ import annotations

import json
from random import Random, SystemRandom

import pytest

from idemactor.core.delivery import Event, Intent
from idemactor.core.record import Entry, Incident
from idemactor.storage.plain import NotPlain, from_plain, to_plain
from tests.storage.samples import Writer


def test_whatever_a_shard_writes_comes_back() -> None:
    seed = SystemRandom().randrange(2**32)
    writer = Writer(Random(seed))
    seen = 0
    for _ in range(60):
        batch = writer.batch()
        values: list[tuple[type[object], object]] = [(Entry, each) for each in batch.puts]
        values += [(Incident, each) for each in batch.incidents] + [(Event, each) for each in batch.events]
        values += [(Intent, each) for each in batch.intents.values()]
        for kind, value in values:
            assert from_plain(kind, json.loads(json.dumps(to_plain(value)))) == value, f"seed {seed}"
            seen += 1
    assert seen > 100


def test_what_has_no_form_is_a_mistake() -> None:
    for value in (1.5, [1], object()):
        with pytest.raises(TypeError, match="no form in JSON"):
            to_plain(value)


def test_an_array_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(NotPlain, match=r"headers\[0\]: is an array of 2"):
        from_plain(Intent, {"content_type": "", "body": "", "headers": [["a"]]})
