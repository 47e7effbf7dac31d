"""What is written and read without h11 is what h11 writes and reads; whatever is unusual is left to it."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idemactor.dispatch.plain_http import answer_start, request_bytes
from idemactor.gateway.proxy.call import Outgoing
from idemactor.gateway.proxy.headers import Pairs, encoded

HOST = ("Host", "upstream.test")
POST = h11.Request(method=b"POST", target=b"/", headers=[(b"host", b"x"), (b"content-length", b"0")])
USUAL = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nX-\xe4: \r\n\r\n{}"
USUAL = USUAL.replace(b"X-\xe4: ", b"X-A: \xe4 b")


def by_h11(outgoing: Outgoing) -> bytes:
    headers = encoded((*outgoing.headers, ("Content-Length", str(len(outgoing.body)))))
    connection = h11.Connection(h11.CLIENT)
    request = h11.Request(method=outgoing.method.encode(), target=outgoing.target.encode(), headers=headers)
    parts = [
        connection.send(request),
        connection.send(h11.Data(data=outgoing.body)),
        connection.send(h11.EndOfMessage()),
    ]
    return b"".join(part for part in parts if part)


def test_a_usual_request() -> None:
    pairs = (HOST, ("Content-Type", "text/plain"), ("X-Empty", ""), ("X-Name", "J\xfcrgen a\tb"))
    outgoing = Outgoing("POST", "/orders?a=%20", pairs, b"\x00body\r\n")
    assert request_bytes(outgoing) == by_h11(outgoing)


@pytest.mark.parametrize(
    "pair",
    [
        *(
            ("X", value)
            for value in ("a\r\nY: b", "a\r\n", "a\nb", "a\rb", "a\x00", " a", "a ", "a\t", "\u20ac", "\x85")
        ),
        *((name, "a") for name in ("", "X Y", "X:", "X\r\nY", "\xe4", " X")),
    ],
)
def test_a_field_that_is_unusual_is_left_to_h11(pair: tuple[str, str]) -> None:
    assert request_bytes(Outgoing("POST", "/", (HOST, pair), b"")) is None


@pytest.mark.parametrize("target", ["", "/a b", "/\r\nX: y", "/\xe4"])
def test_a_target_that_is_unusual_is_left_to_h11(target: str) -> None:
    assert request_bytes(Outgoing("POST", target, (HOST,), b"")) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["X-A", "x", "Y:", "a b"]) | st.text(max_size=4), st.text(max_size=8)), max_size=4
    ),
    st.binary(max_size=20),
)
@example([("X", "a\r\nY: b")], b"")
def test_a_request_is_h11s_or_none(pairs: list[tuple[str, str]], body: bytes) -> None:
    own: Pairs = tuple(pair for pair in pairs if pair[0].lower() not in ("host", "content-length", "transfer-encoding"))
    outgoing = Outgoing("POST", "/orders", (HOST, *own), body)
    made = request_bytes(outgoing)
    assert made is None or made == by_h11(outgoing)


def test_a_usual_answer() -> None:
    start = answer_start(USUAL)
    assert start is not None
    assert start.status == 200
    assert start.headers == (("Content-Type", "application/json"), ("Content-Length", "2"), ("X-A", "\xe4 b"))
    assert USUAL[start.body_at : start.ends_at] == b"{}"


@pytest.mark.parametrize("value", ["keep-alive", "Keep-Alive"])
def test_a_connection_that_is_kept(value: str) -> None:
    assert answer_start(f"HTTP/1.1 500\r\nConnection: {value}\r\nContent-Length:0\r\n\r\n".encode()) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        USUAL[:-3],
        b"\r\n" + USUAL,
        *(
            USUAL.replace(b"1.1 200", one)
            for one in (b"1.0 200", b"1.1 100", b"1.1 204", b"1.1 304", b"1.1 600", b"1.1  200")
        ),
        *(
            USUAL.replace(b"X-A: ", one)
            for one in (b"Connection: close", b"connection: keep-alive, close", b"Connection: upgrade")
        ),
        USUAL.replace(b"X-A: ", b"Transfer-Encoding: chunked\r\nX:"),
        USUAL.replace(b"X-A: \xe4 b", b"content-length: 2"),
        USUAL.replace(b"X-A: \xe4 b", b"content-length: 3"),
        *(
            USUAL.replace(b"Length: 2", b"Length: " + one)
            for one in (b"", b"+2", b"2, 2", b"0x2", b"-1", b"\xb2", b"2\x00")
        ),
        USUAL.replace(b"Content-Length: 2\r\n", b""),
        USUAL.replace(b"X-A: ", b"X-A : "),
        USUAL.replace(b"X-A: ", b" X-A: "),
        USUAL.replace(b"X-A: ", b"X-A"),
        USUAL.replace(b"\xe4 b", b"a\nb"),
        USUAL.replace(b"\xe4 b", b"a\rb"),
        USUAL.replace(b"\xe4 b", b"a\x00b"),
        USUAL.replace(b" OK", b" O\nK"),
    ],
)
def test_an_answer_that_is_unusual_is_left_to_h11(data: bytes) -> None:
    assert answer_start(data) is None


PIECES = st.sampled_from(
    [
        *(
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 201\r\n",
            b"HTTP/1.0 200 OK\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"\r\n",
            b"\n",
        ),
        *(
            b"Content-Length: 2\r\n",
            b"content-length:0\r\n",
            b"Content-Length: 2, 2\r\n",
            b"Transfer-Encoding: chunked\r\n",
        ),
        *(
            b"Connection: close\r\n",
            b"Connection: Keep-Alive\r\n",
            b"X: a\r\n",
            b"X : a\r\n",
            b" folded\r\n",
            b"{}",
            b"\x00",
            b":",
        ),
    ]
)


@given(st.lists(PIECES | st.binary(max_size=3), max_size=8).map(b"".join) | st.just(USUAL))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
def test_an_answer_is_h11s_or_none(data: bytes) -> None:
    start = answer_start(data)
    if start is None or len(data) < start.ends_at:
        return
    connection = h11.Connection(h11.CLIENT)
    connection.send(POST)
    connection.send(h11.EndOfMessage())
    connection.receive_data(data[: start.ends_at])
    head = connection.next_event()
    assert isinstance(head, h11.Response)
    assert head.status_code == start.status
    assert (
        tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers.raw_items())
        == start.headers
    )
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert body == data[start.body_at : start.ends_at]
    # It is the end, and the connection goes on.
    assert connection.our_state is connection.their_state is h11.DONE
    connection.start_next_cycle()
