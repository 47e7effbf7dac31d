"""The shipped sources on the requests of real senders: a resend is a repeat, a near miss is none, no secret shows."""

from __future__ import annotations

import pytest

from idemactor.errors import InvalidRequest
from idemactor.gateway.profiles import SCHEMES, SHIPPED
from idemactor.gateway.request import RawRequest
from idemactor.gateway.resolve import Resolved, resolve
from idemactor.gateway.source import Bucket
from tests.gateway.payloads import SOURCES, START_MS, Payload, payloads

CASES = payloads()
IDS = [case.id for case in CASES]


def told(case: Payload, request: RawRequest, at_ms: int, first: Resolved) -> str:
    """What becomes of a request that comes after the first."""
    try:
        found = resolve(case.source, request, now_ms=at_ms)
    except InvalidRequest as error:
        return "invalid" if error.field else "an error that names no field"
    if found.key != first.key:
        return "new"
    return "repeat" if found.fingerprint == first.fingerprint else "mismatch"


def test_every_file_has_a_source() -> None:
    assert {case.id for case in CASES} == SOURCES.keys()


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("kind", ["resends", "near_misses"])
def test_what_comes_after_the_first(case: Payload, kind: str) -> None:
    first = resolve(case.source, case.first, now_ms=START_MS)
    variants = list(case.variants(kind))
    assert variants
    for what, expect, request, at_ms in variants:
        allowed = expect if isinstance(expect, list) else [expect]
        assert told(case, request, at_ms, first) in allowed, what


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_resend_is_remembered(case: Payload) -> None:
    """As long as the sender may try again, whichever of window and ttl counts."""
    first = resolve(case.source, case.first, now_ms=START_MS)
    memory_ms = first.window_ms or first.ttl_ms or 300_000
    for what, _, _, at_ms in case.variants("resends"):
        assert at_ms - START_MS < memory_ms, what


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_key_is_the_sources_own_where_one_thing_makes_it(case: Payload) -> None:
    found = resolve(case.source, case.first, now_ms=START_MS)
    expected = case.content["profile"].get("expected_key")
    if case.id == "h05-shopify-order":
        # The event's id is a shop's own: the key is made of both.
        assert expected not in found.key
    elif expected is not None:
        assert (found.key, found.rule) == (expected, "source")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_secrets_reach_neither_key_nor_fingerprint(case: Payload) -> None:
    for request in (case.first, *(request for _, _, request, _ in case.variants("resends"))):
        shown = repr(resolve(case.source, request, now_ms=START_MS))
        assert not [secret for secret in case.secrets if secret in shown]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_shipped_source_remembers_as_long_as_its_sender_retries(name: str) -> None:
    source = SHIPPED[name]
    assert source.name == name
    if source.retry_horizon_ms is not None and source.id:
        assert source.ttl_ms is not None
        assert source.ttl_ms >= source.retry_horizon_ms
    if source.derive and source.bucket is Bucket.WINDOW:
        assert source.retry_horizon_ms is not None
        assert source.window_ms >= source.retry_horizon_ms


def test_the_signing_senders_are_shipped() -> None:
    assert SCHEMES.keys() <= SHIPPED.keys()
