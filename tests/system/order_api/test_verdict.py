"""The example's verdict rule is the server's: the same answers, the same words."""

from __future__ import annotations

import pytest

from examples.order_api.verdict import DEFINITE_FAILURE, NOT_EXECUTED, Verdict, verdict_of
from idemactor.gateway.proxy import verdict as server
from idemactor.gateway.proxy.routes import Route, SuccessRule, parse_upstream

ROUTE = Route(
    "/",
    parse_upstream("http://127.0.0.1:1"),
    "orders",
    success=SuccessRule("/success", True),
    definite_failure=DEFINITE_FAILURE,
    not_executed=NOT_EXECUTED,
)
SAME = {
    server.Verdict.SUCCESS: Verdict.SUCCEEDED,
    server.Verdict.FAILURE: Verdict.FAILED,
    server.Verdict.NOT_EXECUTED: Verdict.NOT_EXECUTED,
    server.Verdict.IN_DOUBT: Verdict.AMBIGUOUS,
}


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (200, b'{"success": true}', Verdict.SUCCEEDED),
        (201, b'{"success": true}', Verdict.SUCCEEDED),
        (200, b'{"success": false}', Verdict.FAILED),
        (200, b'{"success": 1}', Verdict.AMBIGUOUS),
        (200, b"{}", Verdict.AMBIGUOUS),
        (200, b"[]", Verdict.AMBIGUOUS),
        (200, b"it is done", Verdict.AMBIGUOUS),
        (200, b"\xff", Verdict.AMBIGUOUS),
        (204, b"", Verdict.AMBIGUOUS),
        (400, b'{"success": true}', Verdict.FAILED),
        (422, b"", Verdict.FAILED),
        (429, b"", Verdict.NOT_EXECUTED),
        (503, b'{"success": true}', Verdict.NOT_EXECUTED),
        (500, b'{"success": false}', Verdict.AMBIGUOUS),
        (409, b"", Verdict.AMBIGUOUS),
        (302, b"", Verdict.AMBIGUOUS),
    ],
)
def test_the_rule(status: int, body: bytes, verdict: Verdict) -> None:
    assert verdict_of(status, body) is verdict
    assert SAME[server.verdict_of(ROUTE, status, (), body)] is verdict
