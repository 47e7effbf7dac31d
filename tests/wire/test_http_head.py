"""Heads of the hot calls: never read more permissively than h11 and the guard behind it do."""

from __future__ import annotations

import time

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idemactor.core.limits import BODY_BYTES_MAX, OUTCOME_BODY_BYTES_MAX
from idemactor.server.http_protocol import objection
from idemactor.wire.http_head import END, HEAD_BYTES_MAX, HEAD_FIELDS_MAX, Head, Heads

LINE = b"POST /v1/default/reserve HTTP/1.1"
USUAL = (b"Host: h", b"Content-Type: application/json", b"Content-Length: 2")


def head_of(*fields: bytes, line: bytes = LINE) -> bytes:
    return b"\r\n".join((line, *fields)) + END


def usual_but(*fields: bytes, line: bytes = LINE) -> bytes:
    """A usual head with ``fields`` in the place of those of the same name, or behind."""
    names = {field.partition(b":")[0].strip().lower() for field in fields}
    return head_of(*(one for one in USUAL if one.partition(b":")[0].lower() not in names), *fields, line=line)


def test_a_usual_head() -> None:
    fields = (b"Authorization: Bearer t", b'Idempotency-Key:\t"a b" ', b"idempotency-key: c", b"Accept:", b"X: a\tb")
    assert Heads().parse(usual_but(*fields)) == Head(
        path="/v1/default/reserve",
        op="reserve",
        namespace="default",
        length=2,
        authorization=("Bearer t",),
        keys=(b'"a b"', b"c"),
    )
    batch = Heads().parse(head_of(*USUAL, line=b"POST /v1/batch HTTP/1.1"))
    assert batch is not None
    assert (batch.path, batch.op, batch.namespace) == ("/v1/batch", "batch", "")


@pytest.mark.parametrize("op", ["reserve", "commit", "release", "extend", "accept", "batch"])
def test_the_length_is_the_one_that_the_call_may_have(op: str) -> None:
    line = b"POST /v1/%b HTTP/1.1" % (b"batch" if op == "batch" else b"default/" + op.encode())
    most = OUTCOME_BODY_BYTES_MAX if op in ("commit", "accept") else BODY_BYTES_MAX
    for length, ours in ((0, False), (1, True), (most, True), (most + 1, False)):
        found = Heads().parse(usual_but(b"Content-Length: %d" % length, line=line))
        assert (found is not None and found.length == length) is ours


@pytest.mark.parametrize(
    "line",
    [
        b"POST  /v1/default/reserve HTTP/1.1",
        b"post /v1/default/reserve HTTP/1.1",
        b" POST /v1/default/reserve HTTP/1.1",
        b"POST /v1/default/reserve HTTP/1.0",
        b"POST /v1/default/reserve HTTP/1.1 ",
        b"POST /v1/default/reserve",
        b"GET /v1/default/reserve HTTP/1.1",
        b"POST http://h/v1/default/reserve HTTP/1.1",
        b"POST /v1/default/reserve?x=1 HTTP/1.1",
        b"POST /v1/default/reserve/ HTTP/1.1",
        b"POST /v1//reserve HTTP/1.1",
        b"POST /v1/De/reserve HTTP/1.1",
        b"POST /v1/%64efault/reserve HTTP/1.1",
        b"POST /v1/" + b"a" * 64 + b"/reserve HTTP/1.1",
        b"POST /v1/default/get HTTP/1.1",
        b"POST /v1/default/resolve HTTP/1.1",
        b"\r\nPOST /v1/default/reserve HTTP/1.1",
        b"",
    ],
)
def test_request_lines_that_are_not_ours(line: bytes) -> None:
    assert Heads().parse(head_of(*USUAL, line=line)) is None


@pytest.mark.parametrize(
    "fields",
    [
        (b"Transfer-Encoding: chunked",),
        (b"Transfer-Encoding: identity",),
        (b"Content-Length: 2", b"Content-Length: 2"),
        (b"Content-Length: 2", b"Content-Length: 3"),
        (b"Content-Length: 2, 2",),
        (b"Content-Length: +2",),
        (b"Content-Length: 0x2",),
        (b"Content-Length: 2_0",),
        (b"Content-Length: -2",),
        (b"Content-Length: ",),
        (b"Content-Length: 00000002",),
        (b"X: a\r\n b",),
        (b" X: a",),
        (b"X: a\0b",),
        (b"X: a\nTransfer-Encoding: chunked",),
        (b"X: a\rb",),
        (b"X: a\r",),
        (b"X: \xe9",),
        (b"X: \x7f",),
        (b"X: \x0b",),
        (b"X : a",),
        (b": a",),
        (b"X",),
        (b"Host: h", b"Host: h"),
        (b"Expect: 100-continue",),
        (b"Upgrade: websocket",),
        (b"HTTP2-Settings: AAMAAABk",),
        (b"Content-Encoding: identity",),
        (b"Trailer: x",),
        (b"Connection: close",),
        (b"Connection: keep-alive, close",),
        (b"Connection: upgrade",),
        (b"Connection: keep-alive", b"Connection: close"),
        (b"Content-Type: text/plain",),
        (b"Content-Type: application/jsonp",),
        (b"Content-Type: application/a+json",),
        (b"Content-Type: application/json", b"Content-Type: application/json"),
    ],
)
def test_fields_that_are_not_ours(fields: tuple[bytes, ...]) -> None:
    assert Heads().parse(usual_but(*fields)) is None


@pytest.mark.parametrize("missing", range(3))
def test_fields_that_are_needed(missing: int) -> None:
    assert Heads().parse(head_of(*USUAL[:missing], *USUAL[missing + 1 :])) is None


def test_the_size_of_a_head() -> None:
    for size, ours in ((HEAD_BYTES_MAX, True), (HEAD_BYTES_MAX + 1, False)):
        padding = b"X: " + b"a" * (size - len(head_of(*USUAL)) - len(b"\r\nX: "))
        head = head_of(*USUAL, padding)
        assert len(head) == size
        assert (Heads().parse(head) is not None) is ours
    for count, ours in ((HEAD_FIELDS_MAX, True), (HEAD_FIELDS_MAX + 1, False)):
        assert (Heads().parse(head_of(*USUAL, *[b"X: a"] * (count - 3))) is not None) is ours


@pytest.mark.parametrize("value", [b" " * 15_000 + b"\x80", b"a " * 7_500 + b"\x80", b"a" + b"\t" * 15_000 + b"b"])
def test_no_head_takes_long(value: bytes) -> None:
    started = time.process_time()
    Heads().parse(head_of(*USUAL, b"X:" + value))
    assert time.process_time() - started < 0.5


def test_what_is_remembered_is_what_was_found() -> None:
    heads = Heads()
    for _ in range(2):
        for n in range(1_500):
            found = heads.parse(usual_but(b"Idempotency-Key: k%d" % n))
            assert found is not None
            assert found.keys == (b"k%d" % n,)


# Pieces that heads are made of, the usual ones and those that parsers have quarrelled about.
_LINES = st.sampled_from(
    [LINE] * 6
    + [
        b"POST /v1/batch HTTP/1.1",
        b"POST /v1/a-b_c9/commit HTTP/1.1",
        b"POST  /v1/default/reserve HTTP/1.1",
        b"post /v1/default/reserve HTTP/1.1",
        b"POST /v1/default/reserve HTTP/1.0",
        b"\r\nPOST /v1/default/reserve HTTP/1.1",
    ]
)
_NAMES = st.sampled_from(
    b"Host|Content-Type|Content-Length|content-length|Transfer-Encoding|Connection|Accept|Authorization|"
    b"Idempotency-Key|Expect|X | X|X\t|X_y||\xe9|X\0".split(b"|")
)
_VALUES = st.one_of(
    st.sampled_from(
        b"h|application/json|application/json ; x=y|2|02|2 |+2|2,2|\x0b2|\x1c2|chunked|keep-alive|close|Bearer t|k|"
        b"a\r\n b|a\nb|a\rb|\0|\xa0|\x85".split(b"|")
    ),
    st.binary(max_size=6),
)
_SEPARATORS = st.sampled_from([b": ", b":", b":\t ", b" :", b"", b"=", b":\x0c"])
_FIELDS = st.one_of(st.sampled_from(USUAL), st.builds(lambda *parts: b"".join(parts), _NAMES, _SEPARATORS, _VALUES))
_ENDS = st.sampled_from([b"\r\n"] * 30 + [b"\n", b"\r", b"\r\r\n"])


@st.composite
def _heads(draw: st.DrawFn) -> bytes:
    fields = [*USUAL, *draw(st.lists(_FIELDS, max_size=4))]
    for _ in range(draw(st.integers(0, 1))):
        fields.pop(draw(st.integers(0, len(fields) - 1)))
    lines = [draw(_LINES), *draw(st.permutations(fields))]
    head = b"".join(line + draw(_ENDS) for line in lines) + b"\r\n"
    if draw(st.booleans()):
        at = draw(st.integers(0, len(head) - 4))
        head = head[:at] + draw(st.binary(max_size=2)) + head[at + draw(st.integers(0, 2)) :]
    # As the connection cuts it out of what came.
    return head[: head.index(END) + len(END)] if END in head else head + END


@given(_heads())
@example(head_of(*USUAL))
@settings(max_examples=2_000, deadline=None)
def test_what_is_accepted_here_is_accepted_by_h11_and_means_the_same(head: bytes) -> None:
    found = Heads().parse(head)
    if found is None:
        return
    body = b"x" * found.length
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
    connection.receive_data(head + body + b"GET / HTTP/1.1\r\n")
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    assert objection(request, HEAD_BYTES_MAX, HEAD_FIELDS_MAX) is None
    assert not connection.they_are_waiting_for_100_continue
    fields = [(bytes(name), bytes(value)) for name, value in request.headers]
    assert (request.method, request.target, request.http_version) == (b"POST", found.path.encode(), b"1.1")
    assert [value for name, value in fields if name == b"idempotency-key"] == list(found.keys)
    assert [value.decode() for name, value in fields if name == b"authorization"] == list(found.authorization)
    data = connection.next_event()
    assert isinstance(data, h11.Data)
    assert bytes(data.data) == body
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    assert connection.their_state is h11.DONE
    assert connection.trailing_data[0] == b"GET / HTTP/1.1\r\n"
