"""Exceptions that cross a process: what Celery and process pools do with them is pickle."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from idemactor.client import Outcome, errors

GIVEN: dict[str, object] = {
    "code": "IDEMPOTENCY_X",
    "state": "delivering",
    "detail": "one sentence",
    "attempt": 3,
    "operation_id": "o",
    "token": 7,
    "holder": "somebody",
    "outcome": Outcome(200, (("a", "b"),), b"x"),
    "reserved_at": 1,
    "lease_expires_at": 2,
    "retry_after_ms": 3,
    "reason": "why",
    "committed_at": 4,
    "expires_at": 5,
    "effect_begun": True,
    "field": "key",
}

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.IdemactorClientError) and kind.__module__ == errors.__name__
]


def made(kind: type[errors.IdemactorClientError]) -> errors.IdemactorClientError:
    names = inspect.signature(kind.__init__).parameters
    if "args" in names:
        return kind("some text")
    positional = [GIVEN[n] for n, p in names.items() if n != "self" and p.kind is not p.KEYWORD_ONLY]
    named = {n: GIVEN[n] for n, p in names.items() if p.kind is p.KEYWORD_ONLY}
    return kind(*positional, **named)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_kind_survives_pickle_with_all_it_carries(kind: type[errors.IdemactorClientError], protocol: int) -> None:
    error = made(kind)
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_there_is_no_kind_without_a_test() -> None:
    assert {errors.InFlightError, errors.LeaseLost, errors.CommitUnacknowledged, errors.Unreachable} <= set(KINDS)
    assert len(KINDS) >= 28
