"""The RPC door of a real server: many requests in flight, old clients, and answers where HTTP has a status."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

from tests.system.clients import Members, RpcError, connect, frame
from tests.system.process import Server

DEFAULT: Final = {"namespace": "default"}


def collect(sock: Any, count: int) -> dict[int, tuple[Any, Any]]:
    """Answers by msgid, until there are ``count``."""
    unpacker = msgpack.Unpacker()
    found: dict[int, tuple[Any, Any]] = {}
    while len(found) < count:
        data = sock.recv(65_536)
        assert data, "closed before all was answered"
        unpacker.feed(data)
        for kind, msgid, error, result in unpacker:
            assert kind == 1
            assert msgid not in found, "answered twice"
            found[msgid] = (error, result)
    return found


def test_many_in_flight_each_answered_once(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    msgids = chance.sample(range(2**32), 2_000)
    with connect(server.rpc, 30) as sock:
        data = b"".join(frame(msgid, "reserve", {**DEFAULT, "key": f"f{msgid}"}) for msgid in msgids)
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        found = collect(sock, len(msgids))
        sender.join()
    assert found.keys() == set(msgids)
    assert all(error is None and result["key"] == f"f{msgid}" for msgid, (error, result) in found.items())


def test_a_waiter_does_not_hold_up_its_connection(server: Server) -> None:
    with connect(server.rpc) as sock:
        sock.sendall(frame(1, "reserve", {**DEFAULT, "key": "w"}))
        token = collect(sock, 1)[1][1]["token"]
        sock.sendall(frame(2, "reserve", {**DEFAULT, "key": "w", "wait_ms": 10_000, "holder": "waits"}))
        sock.sendall(frame(3, "ping", {}))
        assert collect(sock, 1) == {3: (None, {"result": "pong"})}
        # What it waits for comes on this very connection.
        sock.sendall(frame(4, "release", {**DEFAULT, "key": "w", "token": token}))
        found = collect(sock, 2)
        assert found[4][1]["result"] == "released"
        assert (found[2][1]["result"], found[2][1]["attempt"]) == ("reserved", 1)


def test_a_wait_that_ends(server: Server) -> None:
    with server.rpc_client() as client:
        client.call("reserve", key="long", lease_ms=60_000)
        started = time.monotonic()
        told = client.call("reserve", key="long", wait_ms=200)
        assert told["result"] == "in_flight"
        assert 0.19 < time.monotonic() - started < 3
        # The end of a lease ends a wait too, and before its time.
        client.call("reserve", key="short", lease_ms=150)
        told = client.call("reserve", key="short", wait_ms=30_000)
        assert (told["result"], told["takeover"]) == ("reserved", True)
        assert time.monotonic() - started < 10


def test_old_clients_send_text_as_raw(server: Server) -> None:
    """The MessagePack of before 2013 knows no ``bin`` and packs text as it packs bytes."""
    packer = msgpack.Packer(use_bin_type=False)
    body = b"\xff\xfe\x00raw"
    calls: list[dict[bytes, Any]] = [
        {b"namespace": b"default", b"key": b"old", b"request_id": b"r1"},
        {b"namespace": b"default", b"key": b"old", b"token": 0, b"outcome": {b"status": 200, b"body": body}},
    ]
    with connect(server.rpc) as sock:
        sock.sendall(packer.pack([0, 1, b"reserve", [calls[0]]]))
        calls[1][b"token"] = collect(sock, 1)[1][1]["token"]
        sock.sendall(packer.pack([0, 2, b"commit", [calls[1]]]))
        assert collect(sock, 1)[2][1]["result"] == "committed"
    with server.rpc_client() as client:
        assert client.call("reserve", key="old")["outcome"]["body"] == body
    with server.http_client() as http:
        assert http.call("reserve", key="old").members["outcome"]["body_b64"] == "//4AcmF3"


def test_names_as_bin(server: Server) -> None:
    with server.rpc_client() as client:
        told = client.request(b"reserve", {b"namespace": b"default", b"key": "caf\u00e9".encode()})
        assert told["key"] == "caf\u00e9"


def test_bodies_are_bytes_in_every_answer(server: Server) -> None:
    with server.rpc_client() as client:
        for key, body in (("text", "h\u00e9"), ("bytes", b"\xff\0"), ("none", None)):
            outcome: Members = {"status": 200, "headers": [["a", "b"]]} | ({} if body is None else {"body": body})
            client.call("accept", key=f"body-{key}", outcome=outcome)
            found = client.call("reserve", key=f"body-{key}")["outcome"]
            expected = body.encode() if isinstance(body, str) else body or b""
            assert found == {"status": 200, "headers": [["a", "b"]], "body": expected}


def test_what_is_a_result_and_what_an_error(server: Server) -> None:
    with server.rpc_client() as client:
        client.call("reserve", key="r", payload={"qty": 1})
        token = client.call("get", key="r")["record"]["token"]
        refusals = [
            (client.call("reserve", key="r"), "in_flight", "IDEMPOTENCY_IN_FLIGHT"),
            (client.call("reserve", key="r", payload={"qty": 2}), "mismatch", "IDEMPOTENCY_MISMATCH"),
            (client.call("commit", key="r", token=token + 1), "stale", "IDEMPOTENCY_STALE_TOKEN"),
            (client.call("commit", key="r0", token=1), "unknown", "IDEMPOTENCY_UNKNOWN_KEY"),
            (client.call("get", key="r0"), "unknown", "IDEMPOTENCY_UNKNOWN_KEY"),
        ]
        client.call("commit", key="r", token=token)
        refusals += [
            (client.call("release", key="r", token=token), "already_committed", "IDEMPOTENCY_ALREADY_COMMITTED"),
            (client.call("reserve", key="r", on_duplicate="reject"), "completed", "IDEMPOTENCY_DUPLICATE"),
        ]
        for told, result, code in refusals:
            assert (told["result"], told["code"]) == (result, code)
        client.call("reserve", key="unsettled")
        errors = [
            ("forget", {"key": "unsettled"}, "IDEMPOTENCY_UNSETTLED"),
            ("reserve", {"key": ""}, "IDEMPOTENCY_INVALID_REQUEST"),
            ("nothing", {"key": "r"}, "IDEMPOTENCY_INVALID_REQUEST"),
            ("acknowledge", {"id": "0-999"}, "IDEMPOTENCY_NOT_FOUND"),
        ]
        for op, members, code in errors:
            with pytest.raises(RpcError, match=f"^{code}: ."):
                client.call(op, **members)


def test_payloads_of_both_kinds_and_of_both_doors_mean_the_same(server: Server) -> None:
    with server.rpc_client() as client, server.http_client() as http:
        http.call("reserve", key="p", payload={"qty": 0.1, "n": [1, None, "x"]})
        for payload in ({"n": [1, None, "x"], "qty": 0.1}, {b"n": [1.0, None, "x"], b"qty": 0.1}):
            assert client.call("reserve", key="p", payload=payload)["result"] == "in_flight"
        assert client.call("reserve", key="p", payload_json='{"qty": 10e-2, "n":[1,null,"x"]}')["result"] == "in_flight"
        assert client.call("reserve", key="p", payload={"n": [1, None, b"x"], "qty": 0.1})["result"] == "mismatch"
        assert client.call("reserve", key="p", payload_json='{"qty": 0.1000000000000000055}')["result"] == "mismatch"


def test_listings_and_the_policy(server: Server) -> None:
    with server.rpc_client() as client, server.http_client() as http:
        client.call("reserve", "strict", key="listed", fingerprint="f")
        listed = client.call("records", "strict", state="pending", limit=10)
        assert [record["key"] for record in listed["records"]] == ["listed"]
        assert listed["next"] is None
        assert client.call("incidents", "strict") == {"incidents": [], "next": None}
        assert client.call("policy", "strict") == http.get("/v1/strict/policy").members
        with pytest.raises(RpcError, match=r"^IDEMPOTENCY_INVALID_REQUEST: "):
            client.call("records", "strict", limit="10")


def test_a_login_where_none_is_needed(server: Server) -> None:
    with server.rpc_client() as client:
        told = client.request("auth", {"token": "whatever"})
        assert told == {"result": "authenticated", "tenant": "default", "role": "operator"}


def test_a_connection_that_says_goodbye_gets_its_answers(server: Server) -> None:
    with connect(server.rpc) as sock:
        sock.sendall(b"".join(frame(number, "reserve", {**DEFAULT, "key": f"bye{number}"}) for number in range(100)))
        sock.shutdown(1)
        found = collect(sock, 100)
        assert all(result["result"] == "reserved" for _, result in found.values())
        assert sock.recv(1) == b""


def test_unix_sockets_speak_the_same(home: Path) -> None:
    with Server(home, rpc=[f"unix:{home}/r.sock"]) as server, server.rpc_client() as client:
        assert client.call("reserve", key="u")["result"] == "reserved"
