"""The HTTP door of a real server where only a real one can show it: what goes over the wire, byte for byte."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any, Final

import pytest

from tests.system.clients import Members, connect, raw, read_to_end
from tests.system.process import Server

INVALID: Final = "IDEMPOTENCY_INVALID_REQUEST"
PROBLEM: Final = b"content-type: application/problem+json"


def request(op: str, members: Members | None = None, *headers: bytes, close: bool = True) -> bytes:
    """The bytes of a command, with these header lines."""
    body = b"" if members is None else json.dumps(members).encode()
    lines = [f"POST /v1/default/{op} HTTP/1.1".encode(), b"Host: t", *headers]
    if members is not None:
        lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def told(answer: bytes) -> tuple[int, Members]:
    """The status and the members of one answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    members: Members = json.loads(body)
    return int(head.split()[1]), members


def answers(data: bytes) -> list[Members]:
    """The members of all the answers that came on one connection, in order."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        match = re.search(rb"content-length: (\d+)", head.lower())
        assert match is not None, head
        body, data = data[: int(match[1])], data[int(match[1]) :]
        found.append(json.loads(body) | {"http": int(head.split()[1])})
    return found


# ------------------------------------------------------------------------------------------------------- the key header


@pytest.mark.parametrize(
    "value",
    [
        b"caf\xc3\xa9", b'"caf\xc3\xa9"', b"\x80", b"k\xff", b'"k\xa0"', b"\xc2\xa0", b"k\x7f", b'"a\tb"', b"a\tb",
        b"k;v=1", b'"k" x', b'"k";', b'"k";V=1', b'"a"b"', b":a2V5:,", b"a b",
    ],
)  # fmt: skip
def test_a_key_header_that_is_refused(server: Server, value: bytes) -> None:
    answer = raw(server.http, request("reserve", None, b"Idempotency-Key: " + value))
    status, members = told(answer)
    assert (status, members["code"], members["proceed"]) == (400, INVALID, False), (value, members)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"!#$%&'*+-./09:<=>?@AZ[\\]^_`az{|}~", "!#$%&'*+-./09:<=>?@AZ[\\]^_`az{|}~"),
        (b'"with, comma; and space"', "with, comma; and space"),
        (b'"k1";a;b=1;c="x";d=?1;e=:YQ==:', "k1"),
        (b"\t k2 \t", "k2"),
        (b"'k3", "'k3"),
        (b'"' + b"x" * 256 + b'"', "x" * 256),
        (b"y" * 256, "y" * 256),
        (b'"' + b"\\\\" * 256 + b'"', "\\" * 256),
    ],
)
def test_a_key_header_that_is_taken(server: Server, value: bytes, key: str) -> None:
    status, members = told(raw(server.http, request("reserve", None, b"IDEMPOTENCY-KEY:" + value)))
    assert (status, members.get("key")) == (201, key), members


def test_a_key_header_over_256_characters(server: Server) -> None:
    for value in (b"x" * 257, b'"' + b"x" * 257 + b'"'):
        assert told(raw(server.http, request("reserve", None, b"Idempotency-Key: " + value)))[0] == 400


@pytest.mark.parametrize(
    "lines",
    [
        (b"Idempotency-Key: k", b"Idempotency-Key: k"),
        (b"Idempotency-Key: k", b"idempotency-key: k"),
        (b"Idempotency-Key: k", b"Idempotency-Key:"),
        (b"Idempotency-Key: k", b"X: y", b"Idempotency-Key: other"),
    ],
)
def test_a_key_header_sent_twice(server: Server, lines: tuple[bytes, ...]) -> None:
    status, members = told(raw(server.http, request("reserve", None, *lines)))
    assert (status, members["code"], members["field"]) == (400, INVALID, "key")


def test_header_and_body_name_the_same_key_or_none(server: Server) -> None:
    assert told(raw(server.http, request("reserve", {"key": "both"}, b'Idempotency-Key: "both"')))[0] == 201
    status, members = told(raw(server.http, request("reserve", {"key": "both"}, b"Idempotency-Key: Both")))
    assert (status, members["code"]) == (400, INVALID)
    # Blank is no way back to the body's.
    assert told(raw(server.http, request("reserve", {"key": "both"}, b"Idempotency-Key: ")))[0] == 400


def test_a_key_header_on_a_get_is_ignored(server: Server) -> None:
    data = b"GET /v1/default/policy HTTP/1.1\r\nHost: t\r\nIdempotency-Key: \xff\r\nConnection: close\r\n\r\n"
    assert told(raw(server.http, data))[0] == 200


@pytest.mark.parametrize("lines", [(b"Authorization: Bearer a", b"Authorization: Bearer a")])
def test_without_credentials_an_authorization_counts_for_nothing(server: Server, lines: tuple[bytes, ...]) -> None:
    assert told(raw(server.http, request("get", {"key": "none"}, *lines)))[0] == 404


# ------------------------------------------------------------------------------------------------- answers on the wire


def test_refusals_are_problems_with_what_comes_next(server: Server) -> None:
    raw(server.http, request("reserve", {"key": "busy", "lease_ms": 3_600_000, "holder": "first", "payload": 1}))
    answer = raw(server.http, request("reserve", {"key": "busy"}))
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert PROBLEM in head
    assert b"\r\nretry-after: 5" in head
    status, members = told(answer)
    assert status == members["status"] == 409
    assert (members["result"], members["code"]) == ("in_flight", "IDEMPOTENCY_IN_FLIGHT")
    assert (members["attempt"], members["holder"], members["proceed"]) == (1, "first", False)
    left = members["lease_expires_at"] - members["reserved_at"]
    assert 0 < members["retry_after_ms"] <= left == 3_600_000

    status, members = told(raw(server.http, request("reserve", {"key": "busy", "payload": 2})))
    assert (status, members["result"], members["code"]) == (422, "mismatch", "IDEMPOTENCY_MISMATCH")
    assert not {"attempt", "holder", "fingerprint", "payload", "operation_id"} & members.keys()


def test_retry_after_is_rounded_up_to_whole_seconds(server: Server) -> None:
    raw(server.http, request("reserve", {"key": "soon", "lease_ms": 1_400}))
    head = raw(server.http, request("reserve", {"key": "soon"})).partition(b"\r\n\r\n")[0].lower()
    assert b"\r\nretry-after: 2" in head
    time.sleep(0.6)
    head = raw(server.http, request("reserve", {"key": "soon"})).partition(b"\r\n\r\n")[0].lower()
    assert b"\r\nretry-after: 1" in head


def test_outcomes_come_back_exactly(server: Server) -> None:
    bodies: list[Members] = [
        {"status": 200, "headers": [["Set-Cookie", "a"], ["Set-Cookie", "b"], ["x", ""]], "body": "h\u00e9\n\0"},
        {"status": 599, "headers": [], "body_b64": "//79AIA="},
        {"status": 100, "headers": [], "body": ""},
    ]
    with server.http_client() as client:
        for number, outcome in enumerate(bodies):
            client.call("accept", key=f"exact-{number}", outcome=outcome)
            assert client.call("reserve", key=f"exact-{number}").members["outcome"] == outcome
        # Bytes that are UTF-8 come back as text, and the least that an outcome may be is made whole.
        client.call("accept", key="exact-b64", outcome={"status": 200, "body_b64": "aGk="})
        assert client.call("reserve", key="exact-b64").members["outcome"]["body"] == "hi"
        client.call("accept", key="exact-least", outcome={"status": 204})
        assert client.call("reserve", key="exact-least").members["outcome"] == {
            "status": 204, "headers": [], "body": "",
        }  # fmt: skip
        large = {"status": 200, "headers": [["a", "b"]], "body": "x" * 65_537}
        assert client.call("accept", key="exact-large", outcome=large).status == 201
        assert client.call("reserve", key="exact-large").members["outcome"] == {
            "status": 200, "headers": [], "omitted": True,
        }  # fmt: skip


def test_on_duplicate_of_the_namespace_and_of_the_call(server: Server) -> None:
    with server.http_client() as client:
        client.call("accept", "strict", key="once", fingerprint="f", outcome={"status": 200, "body": "x"})
        answer = client.call("reserve", "strict", key="once", fingerprint="f")
        assert (answer.status, answer.code, answer.members["result"]) == (409, "IDEMPOTENCY_DUPLICATE", "completed")
        assert answer.members["proceed"] is False
        answer = client.call("reserve", "strict", key="once", fingerprint="f", on_duplicate="replay")
        assert (answer.status, answer.members["outcome"]["body"]) == (200, "x")
        answer = client.call("reserve", "strict", key="bare")
        assert (answer.status, answer.code) == (400, INVALID)


# ----------------------------------------------------------------------------------------- connections and their order


def test_keep_alive_and_a_pipeline_in_order(server: Server) -> None:
    requests = [request("reserve", {"key": "piped"}, close=False)]
    requests += [request("reserve", {"key": f"piped-{number}"}, close=False) for number in range(20)]
    requests += [request("reserve", {"key": "piped"})]
    found = answers(raw(server.http, b"".join(requests)))
    assert [one.get("key") for one in found[:-1]] == ["piped", *(f"piped-{number}" for number in range(20))]
    assert [one["http"] for one in found] == [201] * 21 + [409]


def test_a_pipeline_for_one_key_is_applied_in_the_order_sent(server: Server) -> None:
    with server.http_client() as client:
        token = client.call("reserve", key="ordered").members["token"]
    data = request("extend", {"key": "ordered", "token": token, "lease_ms": 5_000}, close=False)
    data += request("commit", {"key": "ordered", "token": token}, close=False)
    data += request("release", {"key": "ordered", "token": token})
    results = [one["result"] for one in answers(raw(server.http, data))]
    assert results == ["extended", "committed", "already_committed"]


def test_an_early_refusal_says_whether_the_connection_goes_on(server: Server) -> None:
    """Headers and body in two packets, as most clients send them, and a refusal that needs no body."""
    with connect(server.http) as sock:
        sock.sendall(b"POST /v1/nowhere/reserve HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n")
        sock.sendall(b"Content-Length: 11\r\n\r\n")
        time.sleep(0.1)
        sock.sendall(b'{"key":"a"}')
        first = sock.recv(65_536)
        assert first.startswith(b"HTTP/1.1 404 ")
        if b"connection: close" in first.lower():
            return
        sock.sendall(request("get", {"key": "none"}))
        assert b"404" in read_to_end(sock)


def test_expect_100_continue_is_answered(server: Server) -> None:
    with connect(server.http) as sock:
        head = b"POST /v1/default/get HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        sock.sendall(head + b"Expect: 100-continue\r\nContent-Length: 15\r\nConnection: close\r\n\r\n")
        assert sock.recv(1_000).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b'{"key": "none"}')
        assert read_to_end(sock).startswith(b"HTTP/1.1 404 ")


def test_half_a_body_and_goodbye_does_nothing(server: Server) -> None:
    whole = request("reserve", {"key": "half"})
    with connect(server.http) as sock:
        sock.sendall(whole[:-3])
        sock.shutdown(socket.SHUT_WR)
        assert b" 201 " not in read_to_end(sock)
    with server.http_client() as client:
        assert client.call("get", key="half").status == 404


def test_the_open_endpoints_and_the_document(server: Server) -> None:
    with server.http_client() as client:
        assert client.get("/livez").members == {"status": "ok"}
        assert client.get("/readyz").members == {"status": "ready"}
        assert client.get("/openapi.json").members["openapi"].startswith("3.")
        metrics = client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        policy = client.get("/v1/trade/policy").members
        assert {"lease_ms", "ttl_ms", "limits", "fingerprint", "on_duplicate", "on_lease_expiry", "on_doubt",
                "on_unavailable"} <= policy.keys()  # fmt: skip
        assert (policy["on_lease_expiry"], policy["lease_ms"]) == ("hold", 300_000)


# ---------------------------------------------------------------------------------------------------- operators' calls


def test_listings_page_through_everything_once(server: Server) -> None:
    keys = {f"page-{number}" for number in range(25)}
    with server.http_client() as client:
        for key in keys:
            client.call("reserve", "again", key=key)
        found: list[str] = []
        cursor = ""
        while True:
            page: Members = client.get(f"/v1/again/records?limit=4&cursor={cursor}").members
            found += [record["key"] for record in page["records"]]
            assert all("outcome" not in record or record["outcome"] is None for record in page["records"])
            if page["next"] is None:
                break
            cursor = page["next"]
            # The cursor stays good while the list changes.
            client.call("forget", "again", key=found[0], force=True)
            client.call("reserve", "again", key=f"later-{len(found)}")
        assert len(found) == len(set(found))
        assert keys <= set(found)


def test_lapsed_records_are_in_doubt(server: Server) -> None:
    with server.http_client() as client:
        client.call("reserve", "trade", key="lapsed", lease_ms=1)
        time.sleep(0.02)
        listed = client.get("/v1/trade/records?state=in_doubt").members["records"]
        assert [record["key"] for record in listed] == ["lapsed"]
        assert client.get("/v1/trade/records?state=pending").members["records"] == []
        assert client.call("get", "trade", key="lapsed").members["record"]["state"] == "in_doubt"
        assert client.call("forget", "trade", key="lapsed").code == "IDEMPOTENCY_UNSETTLED"


def test_an_incident_from_first_to_last(server: Server) -> None:
    with server.http_client() as client:
        first = client.call("reserve", key="twice", lease_ms=1).members
        time.sleep(0.02)
        second = client.call("reserve", key="twice").members
        assert second["takeover"] is True
        outcome: dict[str, Any] = {"status": 200, "headers": [], "body": "late"}
        for _ in range(2):
            late = client.call("commit", key="twice", token=first["token"], outcome=outcome)
            assert (late.status, late.code, late.members["attempt"]) == (409, "IDEMPOTENCY_STALE_TOKEN", 2)
        # One for each operation and token.
        [incident] = client.get("/v1/default/incidents").members["incidents"]
        assert (incident["key"], incident["operation_id"]) == ("twice", first["operation_id"])
        assert (incident["token"], incident["present_token"]) == (first["token"], second["token"])
        assert incident["outcome"] == outcome
        assert client.call("get", key="twice").members["record"]["contested"] is True
        path = f"/v1/default/incidents/{incident['id']}/acknowledge"
        assert client.send("POST", path, None, {}).members == {"result": "acknowledged"}
        again = client.send("POST", path, None, {})
        assert (again.status, again.code) == (404, "IDEMPOTENCY_NOT_FOUND")
        assert client.get("/v1/default/incidents").members["incidents"] == []
        client.call("commit", key="twice", token=first["token"], outcome=outcome)
        assert client.get("/v1/default/incidents").members["incidents"] == []


# ---------------------------------------------------------------------------------------------------------- loose paths


@pytest.mark.parametrize(
    "target",
    [
        "//v1/default/reserve",
        "///v1/default/reserve",
        "/v1/default%2Freserve",
        "/v1%2fdefault/reserve",
        "/v1//default/reserve",
        "/v1/default/reserve/",
        "ftp://x/v1/default/reserve",
        "http://x//v1/default/reserve",
    ],
)
def test_what_only_tidying_up_would_make_a_path_is_unknown(server: Server, target: str) -> None:
    body = json.dumps({"key": f"loose {target}"}).encode()
    head = f"POST {target} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nConnection: close\r\n".encode()
    status, members = told(raw(server.http, head + b"Content-Length: %d\r\n\r\n" % len(body) + body))
    assert (status, members["code"]) == (404, "IDEMPOTENCY_NOT_FOUND")


def test_a_target_in_absolute_form_is_its_path(server: Server) -> None:
    data = request("reserve", {"key": "absolute"}).replace(b"POST /v1", b"POST http://t/v1", 1)
    status, members = told(raw(server.http, data))
    assert (status, members["result"]) == (201, "reserved")


@pytest.mark.parametrize("media_type", ["text/x+json", "model/gltf+json", "application/vnd.api+json; charset=utf-8"])
def test_any_structured_json_is_json(server: Server, media_type: str) -> None:
    data = request("reserve", {"key": media_type}).replace(b"application/json", media_type.encode(), 1)
    assert told(raw(server.http, data))[0] == 201
