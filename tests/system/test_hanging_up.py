"""Clients that leave, or seem to: who waits is let go, and what was read whole is still answered (contract, 12)."""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import Final

import pytest

from tests.system.clients import connect, read_to_end
from tests.system.process import Server

SETTLE_S: Final = 0.2
"""How long a server may take to see that a client left, seconds."""
BEHIND: Final = (b"", b"\r\n", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n")
"""What a client may have sent behind a request that waits."""


def post(path: str, members: object, *, chunked: bool) -> bytes:
    """A call in the usual shape, or in one that only the complete implementation reads."""
    body = json.dumps(members).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n".encode()
    if chunked:
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("half", [False, True])
def test_who_waits_and_leaves_is_not_granted(server: Server, chunked: bool, behind: bytes, half: bool) -> None:
    key = f"left-{chunked}-{BEHIND.index(behind)}-{half}"
    with server.http_client() as holder:
        token = holder.call("reserve", key=key).members["token"]
        waiting = connect(server.http)
        waiting.sendall(post("/v1/default/reserve", {"key": key, "wait_ms": 5_000}, chunked=chunked) + behind)
        time.sleep(SETTLE_S)
        if half:
            waiting.shutdown(socket.SHUT_WR)
        else:
            waiting.close()
        time.sleep(SETTLE_S)
        assert holder.call("release", key=key, token=token).status == 200
        assert holder.call("get", key=key).status == 404
        waiting.close()


def test_who_waits_and_leaves_behind_much_that_is_unread_is_not_granted(server: Server) -> None:
    with server.http_client() as holder:
        token = holder.call("reserve", key="much").members["token"]
        waiting = connect(server.http)
        waiting.sendall(post("/v1/default/reserve", {"key": "much", "wait_ms": 5_000}, chunked=False))
        # More than the server takes at once, and no more than the rest's way holds: a FIN arrives behind its data only.
        waiting.sendall(b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n" * 3_000)
        time.sleep(SETTLE_S)
        waiting.shutdown(socket.SHUT_WR)
        time.sleep(SETTLE_S)
        assert holder.call("release", key="much", token=token).status == 200
        assert holder.call("get", key="much").status == 404
        waiting.close()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("first", [b"", b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n"])
def test_a_client_that_closes_its_sending_side_is_still_answered(server: Server, chunked: bool, first: bytes) -> None:
    for attempt in range(5):
        key = f"half-{chunked}-{len(first)}-{attempt}"
        with connect(server.http) as sock:
            sock.sendall(first + post("/v1/default/reserve", {"key": key}, chunked=chunked))
            sock.shutdown(socket.SHUT_WR)
            answer = read_to_end(sock)
        assert b"HTTP/1.1 201" in answer, answer
        assert b'"result":"reserved"' in answer


@pytest.mark.parametrize("path", ["/livez", "/v1/default/policy", "/v1/default/records", "/metrics", "/nowhere"])
def test_questions_of_such_a_client_are_answered_too(server: Server, path: str) -> None:
    for _ in range(5):
        with connect(server.http) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
            sock.shutdown(socket.SHUT_WR)
            assert read_to_end(sock).startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("kept", [False, True])
def test_a_gateway_that_gave_up_meanwhile_burns_no_key(server: Server, kept: bool) -> None:
    """A server that stood still: the gateway told its sender no, and hung up, before the question was looked at."""
    ask = "GET /v1/default/authorize HTTP/1.1\r\nHost: t\r\nX-Original-Method: POST\r\nX-Original-URI: /\r\n"
    keys = [f"gave-up-{kept}-{number}" for number in range(20)]
    gateways = [connect(server.http) for _ in keys]
    for gateway in gateways if kept else ():
        gateway.sendall(b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n")
        assert gateway.recv(65_536)
    server.signal(signal.SIGSTOP)
    try:
        for key, gateway in zip(keys, gateways, strict=True):
            gateway.sendall(f"{ask}Idempotency-Key: {key}\r\n\r\n".encode())
            gateway.close()
        with connect(server.http) as stays:
            stays.sendall(f"{ask}Idempotency-Key: stays-{kept}\r\nConnection: close\r\n\r\n".encode())
            server.signal(signal.SIGCONT)
            assert read_to_end(stays).startswith(b"HTTP/1.1 200")
    finally:
        server.signal(signal.SIGCONT)
    time.sleep(SETTLE_S)
    with server.http_client() as client:
        assert [client.call("get", key=key).status for key in keys] == [404] * len(keys)
