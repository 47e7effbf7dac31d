"""The example's verdict rule is the server's: the same answers, the same words."""

from __future__ import annotations

import pytest

from examples.order_api.verdict import Verdict, verdict_of


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
