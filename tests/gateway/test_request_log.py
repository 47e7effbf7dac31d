"""The log of requests: digests of keys, payloads in clear only where that is asked for, and secrets never."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from idemactor.core.fingerprint import Number
from idemactor.core.keys import Identity
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.request import RawRequest
from idemactor.gateway.request_log import RequestLog
from idemactor.gateway.source import Format, Source
from idemactor.observability.logs import JsonLines, Redact
from tests.gateway.payloads import SOURCES, payloads

KEY = Identity("acme", "trade", "order-17")
MINE = Source("mine", id=("/id",), secrets=("/pass", "query:token", "header:X-S"), headers=("X-Topic",))


def logged(
    caplog: pytest.LogCaptureFixture, members: Mapping[str, object], *, show: bool, source: Source = MINE
) -> dict[str, Any]:
    """The one line for these members."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "idemactor"):
        RequestLog(Redact(show, b"salt"), {source.name: source})("reserve", KEY, members)
    [record] = caplog.records
    line: dict[str, Any] = json.loads(JsonLines().format(record))
    assert (line["level"], line["event"], line["op"], line["namespace"]) == ("debug", "request", "reserve", "trade")
    return line


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ({"a": Number("1.50"), "b": [b"\xff"]}, '{"a": "1.50", "b": ["\\\\xff"]}'),
        (b"\xff<", "\\xff<"),
        ("x" * 9_999, None),
    ],
)
def test_a_payload(caplog: pytest.LogCaptureFixture, payload: object, shown: str | None) -> None:
    for name in ("payload", "payload_json"):
        line = logged(caplog, {"key": "order-17", name: payload}, show=False)
        assert not line.keys() & {"payload", "request", "source"}
        assert line["key"] == Redact(False, b"salt").log_key(KEY)
        assert "order-17" not in json.dumps(line)
        line = logged(caplog, {"key": "order-17", name: payload}, show=True)
        assert line["key"] == "acme/trade/order-17"
        assert line["payload"] == shown or (shown is None and len(line["payload"]) < 9_999)


def test_a_request_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    headers = (("Content-Type", "application/json"), ("X-S", "s3cret"), ("X-Topic", "t"))
    request = RawRequest("POST", "/h?token=s3cret&a=1", headers, b'{"id":"i","pass":"s3cret"}')
    members = {"source": "mine", "request": request}
    line = logged(caplog, members, show=False)
    assert line["source"] == "mine"
    assert "request" not in line
    line = logged(caplog, members, show=True)
    assert "s3cret" not in json.dumps(line)
    assert json.loads(line["request"]) == {
        "method": "POST",
        "path": "/h",
        "query": ["a=1"],
        "headers": [["x-topic", ["t"]]],
        "body": {"id": "i"},
    }


def test_what_cannot_be_told_from_a_secret_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    request = RawRequest("POST", "/h", (), b"pass=s3cret")
    line = logged(caplog, {"source": "mine", "request": request}, show=True)
    assert "s3cret" not in json.dumps(line)
    assert "body" not in json.loads(line["request"])
    plain = logged(caplog, {"source": "http", "request": request}, show=True, source=SHIPPED["http"])
    assert json.loads(plain["request"])["body"] == "pass=s3cret"
    # A gateway that sends no body asks about a request that has one.
    strict = Source("strict", format=Format.JSON)
    assert "request" not in logged(
        caplog, {"source": "strict", "request": RawRequest("POST", "/", (), b"")}, show=True, source=strict
    )


@pytest.mark.parametrize("case", payloads(), ids=[case.id for case in payloads()])
def test_no_secret_of_real_payloads_in_any_line(case: Any, caplog: pytest.LogCaptureFixture) -> None:
    source = SOURCES[case.id]
    for show in (True, False):
        line = logged(caplog, {"source": source.name, "request": case.first}, show=show, source=source)
        assert not [secret for secret in case.secrets if secret in json.dumps(line)]
