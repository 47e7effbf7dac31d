"""The verdict rule: what an answer says about the effect."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence

import pytest

from idemactor.gateway.proxy.routes import Origin, Route, SuccessRule
from idemactor.gateway.proxy.verdict import READ_BYTES_MAX, Verdict, reads_body, verdict_of

UPSTREAM = Origin("http", "127.0.0.1", 9000)
PLAIN = Route("/", UPSTREAM, "default")
SOFT = Route("/", UPSTREAM, "default", success=SuccessRule("/success", True))

SUCCESS, FAILURE, NOT_EXECUTED, IN_DOUBT = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NOT_EXECUTED, Verdict.IN_DOUBT


@pytest.mark.parametrize("status", range(200, 600))
def test_every_status_without_a_rule_about_the_body(status: int) -> None:
    expected = IN_DOUBT
    if status < 300:
        expected = SUCCESS
    elif status in (400, 401, 403, 404, 422):
        expected = FAILURE
    elif status == 429:
        expected = NOT_EXECUTED
    assert verdict_of(PLAIN, status, (), b"anything") is expected
    assert verdict_of(PLAIN, status, (), None) is expected
    assert not reads_body(PLAIN, status)


def test_a_route_may_say_otherwise() -> None:
    route = Route("/", UPSTREAM, "default", definite_failure=frozenset({409}), not_executed=frozenset({503}))
    assert verdict_of(route, 409, (), b"") is FAILURE
    assert verdict_of(route, 503, (), b"") is NOT_EXECUTED
    assert verdict_of(route, 400, (), b"") is IN_DOUBT


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"success": true}', SUCCESS),
        (b'{"success": false, "error": "margin"}', FAILURE),
        (b'{"success": 1}', IN_DOUBT),
        (b'{"success": "true"}', IN_DOUBT),
        (b'{"success": null}', IN_DOUBT),
        (b'{"Success": true}', IN_DOUBT),
        (b'{"success": true, "success": false}', IN_DOUBT),
        (b"{}", IN_DOUBT),
        (b"[true]", IN_DOUBT),
        (b"true", IN_DOUBT),
        (b'{"success": true', IN_DOUBT),
        (b"<html>", IN_DOUBT),
        (b"", IN_DOUBT),
        (b"\xff", IN_DOUBT),
        (None, IN_DOUBT),
    ],
)
def test_what_a_2xx_says(body: bytes | None, expected: Verdict) -> None:
    assert verdict_of(SOFT, 200, (), body) is expected
    assert reads_body(SOFT, 200)


@pytest.mark.parametrize(
    ("equals", "fails", "said", "expected"),
    [
        ("filled", (), "filled", SUCCESS),
        ("filled", (), "rejected", IN_DOUBT),
        ("filled", ("rejected",), "rejected", FAILURE),
        (0, (), 0, SUCCESS),
        (0, (), False, IN_DOUBT),
        (1, (), True, IN_DOUBT),
        (1, (), 1.0, SUCCESS),
        (1.5, (), 1.50, SUCCESS),
        (0, (-1, -2), -2, FAILURE),
        (False, (), True, FAILURE),
    ],
)
def test_values_are_compared_by_meaning(
    equals: object, fails: Sequence[object], said: object, expected: Verdict
) -> None:
    route = Route("/", UPSTREAM, "default", success=SuccessRule("/data/0/state", equals, tuple(fails)))
    body = json.dumps({"data": [{"state": said}]}).encode()
    assert verdict_of(route, 201, (), body) is expected


def test_the_rule_is_about_2xx_alone() -> None:
    assert verdict_of(SOFT, 500, (), b'{"success": true}') is IN_DOUBT
    assert verdict_of(SOFT, 422, (), b'{"success": true}') is FAILURE
    assert not reads_body(SOFT, 500)


GOOD = b'{"success": true}'


@pytest.mark.parametrize(
    ("coding", "body", "expected"),
    [
        ("gzip", gzip.compress(GOOD, mtime=0), SUCCESS),
        ("X-GZIP", gzip.compress(GOOD, mtime=0), SUCCESS),
        ("deflate", zlib.compress(GOOD), SUCCESS),
        ("identity", GOOD, SUCCESS),
        ("deflate, gzip", gzip.compress(zlib.compress(GOOD), mtime=0), SUCCESS),
        ("gzip", GOOD, IN_DOUBT),
        ("gzip", gzip.compress(GOOD, mtime=0)[:-4], IN_DOUBT),
        ("gzip", gzip.compress(GOOD, mtime=0) + b"x", IN_DOUBT),
        ("br", GOOD, IN_DOUBT),
    ],
)
def test_content_codings(coding: str, body: bytes, expected: Verdict) -> None:
    assert verdict_of(SOFT, 200, (("content-encoding", coding),), body) is expected


def test_what_unpacks_to_too_much_is_not_read() -> None:
    bomb = gzip.compress(b'{"success": true, "x": "' + b"x" * READ_BYTES_MAX + b'"}')
    assert verdict_of(SOFT, 200, (("Content-Encoding", "gzip"),), bomb) is IN_DOUBT
