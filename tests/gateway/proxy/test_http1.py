"""Requests are read strictly: whatever two parsers could read differently is refused."""

from __future__ import annotations

import random

import pytest

from idemactor.gateway.proxy.http1 import (
    CHUNK_LINE_BYTES_MAX,
    FIELDS_MAX,
    TRAILER_BYTES_MAX,
    BodyReader,
    Framing,
    Refused,
    RequestHead,
    parse_head,
)

HOST = b"Host: a\r\n"


def head_of(fields: bytes = HOST, line: bytes = b"POST /orders HTTP/1.1") -> RequestHead:
    return parse_head(line + b"\r\n" + fields + b"\r\n")


def status_of(fields: bytes = HOST, line: bytes = b"POST /orders HTTP/1.1") -> int:
    with pytest.raises(Refused) as caught:
        head_of(fields, line)
    return caught.value.status


def test_a_head_is_kept_as_it_was_sent() -> None:
    head = head_of(b"hOsT: example.org:80\r\nX-A:  caf\xe9 b \r\nX-A:\r\n", b"PATCH /a%2Fb?x=1&y HTTP/1.1")
    assert (head.method, head.target, head.minor) == ("PATCH", "/a%2Fb?x=1&y", 1)
    assert head.headers == (("hOsT", "example.org:80"), ("X-A", "caf\xe9 b"), ("X-A", ""))
    assert head.values("x-a") == ["caf\xe9 b", ""]
    assert (head.framing, head.length, head.has_body, head.keeps_alive) == (Framing.LENGTH, 0, False, True)


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 5 5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: \xb2\r\n",
        b"Content-Length:\r\n",
        b"Content-Length : 5\r\n",
        b"Content-Length\r\n",
        b" Content-Length: 5\r\n",
        b"X-A: b\r\n folded\r\n",
        b"X-A: b\r\n\tfolded\r\n",
        b"X-A: b\nContent-Length: 5\r\n",
        b"X-A: b\rContent-Length: 5\r\n",
        b"X-A: b\x00\r\n",
        b"X-A: b\x0b\r\n",
        b"X-A: b\x7f\r\n",
        b"X(A: b\r\n",
        b": b\r\n",
        b"Host: b\r\n",
    ],
)
def test_a_field_that_can_be_read_in_two_ways_is_refused(fields: bytes) -> None:
    assert status_of(HOST + fields) == 400


@pytest.mark.parametrize(
    "coding", [b"xchunked", b"chunked, chunked", b"gzip, chunked", b"identity", b"", b"\x0bchunked"]
)
def test_every_other_transfer_coding_is_refused(coding: bytes) -> None:
    assert status_of(HOST + b"Transfer-Encoding: " + coding + b"\r\n") in (400, 501)


def test_a_transfer_coding_given_twice_or_to_an_old_server_is_refused() -> None:
    assert status_of(HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") == 501
    assert status_of(HOST + b"Transfer-Encoding: chunked\r\n", b"POST / HTTP/1.0") == 400


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"POST  / HTTP/1.1", 400),
        (b"POST / HTTP/1.1 ", 400),
        (b" POST / HTTP/1.1", 400),
        (b"POST /", 400),
        (b"POST\t/ HTTP/1.1", 400),
        (b"PO ST / HTTP/1.1", 400),
        (b"POST /a b HTTP/1.1", 400),
        (b"POST /\x80 HTTP/1.1", 400),
        (b"POST /a#b HTTP/1.1", 400),
        (b"POST http://a/ HTTP/1.1", 400),
        (b"OPTIONS * HTTP/1.1", 400),
        (b"CONNECT a:80 HTTP/1.1", 501),
        (b"POST / HTTP/2.0", 505),
        (b"POST / HTTP/1.2", 505),
        (b"POST / http/1.1", 400),
        (b"", 400),
    ],
)
def test_request_lines(line: bytes, status: int) -> None:
    assert status_of(HOST, line) == status


def test_hosts() -> None:
    assert status_of(b"") == 400
    assert status_of(b"Host: a\r\nHost: a\r\n") == 400
    assert status_of(b"Host: a/b\r\n") == 400
    assert status_of(b"Host: a@b\r\n") == 400
    assert head_of(b"", b"GET / HTTP/1.0").minor == 0
    assert head_of(b"Host:\r\n").values("host") == [""]


def test_how_many_fields() -> None:
    assert len(head_of(HOST + b"A: b\r\n" * (FIELDS_MAX - 1)).headers) == FIELDS_MAX
    assert status_of(HOST + b"A: b\r\n" * FIELDS_MAX) == 431


def test_expectations() -> None:
    assert head_of(HOST + b"Expect: 100-Continue\r\nContent-Length: 1\r\n").expects_continue
    assert status_of(HOST + b"Expect: tea\r\n") == 417
    assert not head_of(HOST + b"Expect: 100-continue\r\n", b"POST / HTTP/1.0").expects_continue


def test_keeping_alive() -> None:
    assert not head_of(HOST + b"Connection: x, Close\r\n").keeps_alive
    assert not head_of(HOST, b"GET / HTTP/1.0").keeps_alive
    assert head_of(HOST + b"Connection: Keep-Alive\r\n", b"GET / HTTP/1.0").keeps_alive


# --------------------------------------------------------------------------------------------------------------- bodies


CHUNKED = head_of(HOST + b"Transfer-Encoding: Chunked\r\n")


def read(head: RequestHead, data: bytes, max_bytes: int = 100, step: int = 0) -> tuple[bytes, bytes, bool]:
    """The body, what is left over, and whether it was whole; fed in steps of ``step`` bytes, 0: at once."""
    reader, buffer = BodyReader(head, max_bytes), bytearray()
    for start in range(0, len(data), step or len(data)):
        buffer += data[start : start + (step or len(data))]
        reader.feed(buffer)
    return reader.taken(), bytes(buffer), reader.done


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_body_of_a_length_ends_where_it_should(step: int) -> None:
    head = head_of(HOST + b"Content-Length: 5\r\n")
    assert read(head, b"12345GET", step=step) == (b"12345", b"GET", True)
    assert read(head, b"123", step=step) == (b"123", b"", False)


@pytest.mark.parametrize("step", [0, 1, 2, 3, 7])
def test_chunks(step: int) -> None:
    data = b'3\r\nabc\r\n0A;x="y"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET'
    assert read(CHUNKED, data, step=step) == (b"abc0123456789", b"GET", True)


@pytest.mark.parametrize(
    "data",
    [
        b"3\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\n\n",
        b"3\r\nabc0\r\n\r\n",
        b"-3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"\r\n",
        b"g\r\n",
        b"000000003\r\nabc\r\n",
        b"3;a\x00\r\nabc\r\n",
        b"3;a\rb\r\nabc\r\n",
        b"0\r\nno field\r\n\r\n",
        b"0\r\n folded: x\r\n\r\n",
        b"0\r\nA: b\nC: d\r\n\r\n",
        b"1;" + b"x" * CHUNK_LINE_BYTES_MAX,
        b"0\r\nA: " + b"x" * TRAILER_BYTES_MAX,
    ],
)
def test_a_bad_chunk_is_refused(data: bytes) -> None:
    for step in (0, 1):
        with pytest.raises(Refused) as caught:
            read(CHUNKED, data + b"\r\n\r\n", step=step)
        assert caught.value.status == 400


@pytest.mark.parametrize(
    "data",
    [b"2\n", b"2\n{}\n0\n\n", b"2\r{", b"2\r\n{}\n", b"2\r\n{}\r0", b"2\r\n{}\r\n0\n", b"0\r\n\n", b"0\r\nA: b\n"],
)
def test_half_an_end_of_a_line_is_refused_as_it_comes(data: bytes) -> None:
    """Nobody waits for the rest: whoever sends it takes it for the whole, and sends no more."""
    for step in (0, 1):
        with pytest.raises(Refused) as caught:
            read(CHUNKED, data, step=step)
        assert caught.value.status == 400


def test_a_body_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(Refused) as caught:
        BodyReader(head_of(HOST + b"Content-Length: 101\r\n"), 100)
    assert caught.value.status == 413
    with pytest.raises(Refused) as caught:
        read(CHUNKED, b"64\r\n" + b"x" * 100 + b"\r\n1\r\n")
    assert caught.value.status == 413


def test_chunks_read_the_same_however_they_come() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(50):
        body = rng.randbytes(rng.randrange(60))
        data, at = b"", 0
        while at < len(body):
            size = rng.randrange(1, 20)
            piece = body[at : at + size]
            data += b"%x\r\n%b\r\n" % (len(piece), piece)
            at += size
        data += b"0\r\n\r\n"
        found = read(CHUNKED, data + b"NEXT", step=rng.randrange(1, 9))
        assert found == (body, b"NEXT", True), f"seed {seed}"
