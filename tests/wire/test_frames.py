"""MessagePack-RPC frames: what is read, what is answered, and what closes the connection."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.limits import FRAME_BYTES_MAX, VALUES_MAX
from idemactor.wire.frames import (
    BadRequest,
    FrameReader,
    FrameWriter,
    Incoming,
    ProtocolError,
    Request,
    bytes_of,
    encode_error,
    encode_result,
    text_of,
)

PING = msgpack.packb([0, 1, "ping", [{}]])
PONG = Request(1, "ping", {})


def read(data: bytes) -> list[Incoming]:
    """What a reader makes of ``data`` in one piece; the connection stays good."""
    reader = FrameReader()
    found = reader.feed(data)
    assert reader.broken is None
    return found


def assert_answered(frame: bytes, msgid: int, detail: str) -> None:
    """The flawed frame is answered on its msgid, in its place, and the connection goes on."""
    found = read(PING + frame + PING)
    assert found[0] == found[2] == PONG
    assert len(found) == 3
    refused = found[1]
    assert isinstance(refused, BadRequest)
    assert refused.msgid == msgid
    assert detail in refused.detail


def assert_closes(data: bytes, reason: str = "") -> None:
    """What came before is delivered, then the connection is broken, and nothing is read any more."""
    reader = FrameReader()
    assert reader.feed(PING + PING + data + PING) == [PONG, PONG]
    assert isinstance(reader.broken, ProtocolError)
    assert reason in str(reader.broken)
    assert reader.feed(PING) == []
    bytewise = FrameReader()
    found = [incoming for byte in PING + data for incoming in bytewise.feed(bytes([byte]))]
    assert found == [PONG]
    assert isinstance(bytewise.broken, ProtocolError)


def request(params_map: bytes, msgid: int = 7) -> bytes:
    """A request with a hand-made map."""
    frame: bytes = b"\x94\x00" + msgpack.packb(msgid) + b"\xa1x\x91" + params_map
    return frame


# Requests


def test_a_request() -> None:
    params = {"namespace": "trade", "key": "k", "lease_ms": 30_000, "body": b"\x00\xff", "note": None}
    assert read(msgpack.packb([0, 2**32 - 1, "reserve", [params]])) == [Request(2**32 - 1, "reserve", params)]


def test_requests_that_come_together_are_read_in_order() -> None:
    frames = [msgpack.packb([0, number, "get", [{"key": str(number)}]]) for number in range(500)]
    assert read(b"".join(frames)) == [Request(number, "get", {"key": str(number)}) for number in range(500)]


def test_no_params_are_an_empty_map() -> None:
    assert read(msgpack.packb([0, 1, "ping", []])) == [PONG]


def test_old_clients_pack_text_as_bin() -> None:
    frame = msgpack.packb([0, 3, b"reserve", [{b"key": b"k", "\u00e9".encode(): {b"a": [{b"b": b"c"}]}}]])
    assert read(frame) == [Request(3, "reserve", {"key": b"k", "é": {"a": [{"b": b"c"}]}})]


def test_old_clients_pack_bytes_as_raw_str() -> None:
    """Their bytes come back exactly, and the msgid is never lost."""
    for body in (b"\xff\xfe\x00", b"caf\xc3\xa9", b"\xed\xa0\x80", bytes(range(256))):
        frame = msgpack.packb([0, 3, "commit", [{"body": body, "key": "k"}]], use_bin_type=False)
        [found] = read(frame)
        assert isinstance(found, Request)
        assert found.params["key"] == "k"
        assert bytes_of(found.params["body"]) == body


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63), 1.5, 0.1, True, False, None, "é😀", b"\xff", [], {}, [[{}]]])
def test_values_keep_their_type(value: object) -> None:
    [found] = read(msgpack.packb([0, 1, "m", [{"v": value}]]))
    assert isinstance(found, Request)
    assert found.params["v"] == value
    assert type(found.params["v"]) is type(value)


def test_long_encodings_are_the_same_request() -> None:
    frame = (
        b"\xdd\x00\x00\x00\x04" + b"\xd3" + bytes(8) + b"\xcf" + struct.pack(">Q", 9) + b"\xdb\x00\x00\x00\x01x"
        b"\xdc\x00\x01" + b"\xdf\x00\x00\x00\x01" + b"\xda\x00\x01a" + b"\xca" + struct.pack(">f", 0.5)
    )
    assert read(frame) == [Request(9, "x", {"a": 0.5})]


def test_notifications_are_counted_and_dropped() -> None:
    reader = FrameReader()
    note = msgpack.packb([2, "note", [{}]])
    flawed = b"\x93\x02\xa1x\x91\x82\xa1a\x01\xa1a\x02"
    stamped = msgpack.packb([2, "note", [msgpack.Timestamp(1)]])
    assert reader.feed(note + PING + flawed + stamped + note) == [PONG]
    assert reader.notifications == 4
    assert reader.broken is None


# What is answered


@pytest.mark.parametrize(
    ("members", "detail"),
    [
        (b"\x82\xa1a\x01\xa1a\x01", "twice"),
        (b"\x82\xa1a\x01\xc4\x01a\x02", "twice"),
        (b"\x82\xc4\x01a\x01\xc4\x01a\x02", "twice"),
        (b"\x82\xa2\xc3\xa9\x01\xc4\x02\xc3\xa9\x02", "twice"),
        (b"\x81\xa1p\x91\x82\xa1a\x01\xa1a\x02", "twice"),
        (b"\x81\xa1p\x81\xa1q\x92\x80\x82\xa0\x01\xa0\x02", "twice"),
        (b"\x81\x01\x02", "map keys"),
        (b"\x81\xc0\x02", "map keys"),
        (b"\x81\x90\x02", "map keys"),
        (b"\x81\x80\x02", "map keys"),
        (b"\x81\xcb" + bytes(8) + b"\x02", "map keys"),
        (b"\x81\xd4\x05\x01\x02", "ext"),
        (b"\x81\xd6\xff\x00\x00\x00\x01\x02", "map keys"),
        (b"\x81\xa1p\x92\x01\x81\xc3\x02", "map keys"),
        (b"\x81\xa1\xff\x01", "UTF-8"),
        (b"\x81\xc4\x01\xff\x01", "UTF-8"),
        (b"\x81\xa3\xed\xa0\x80\x01", "UTF-8"),
        (b"\x81\xa1p\x91\x81\xa1\xff\x01", "UTF-8"),
        (b"\x81\xa1a\xd4\x01\x00", "ext"),
        (b"\x81\xa1a\xc7\x00\x01", "ext"),
        (b"\x81\xa1a\x91\x81\xa1b\xd8\x7f" + bytes(16), "ext"),
        (b"\x81\xa1a\xd6\xff\x00\x00\x00\x01", "ext"),
        (b"\x81\xa1a\xd7\xff" + bytes(8), "ext"),
        (b"\x81\xa1a\xc7\x0c\xff" + bytes(12), "ext"),
        (b"\x81\xa1a\x92\x01\x81\xa1b\xd6\xff\x00\x00\x00\x01", "ext"),
        (b"\x81\xa1a\xd4\xff\x00", "ext"),
        (b"\x81\xa1a\xd5\xff\x00\x00", "ext"),
        (b"\x81\xa1a\xd7\xff" + b"\xff" * 8, "ext"),
        (b"\x81\xa1a\xc7\x00\xff", "ext"),
        (b"\x81\xd5\xff\x00\x00\x01", "ext"),
    ],
)
def test_a_flawed_map_is_answered_on_its_msgid(members: bytes, detail: str) -> None:
    assert_answered(request(members), 7, detail)
    assert_answered(request(members, 2**32 - 1), 2**32 - 1, detail)


@pytest.mark.parametrize(
    "params",
    [None, {}, 1, "x", b"", [1], [None], [[]], ["a"], [{}, {}], [{}, 1]],
    ids=repr,
)
def test_params_are_an_array_of_one_map(params: object) -> None:
    assert_answered(msgpack.packb([0, 8, "reserve", params]), 8, "params")


@pytest.mark.parametrize("method", [None, 1, 1.5, True, [], {}, ["ping"], b"\xff", {"a": "b"}], ids=repr)
def test_a_method_that_is_no_text_is_unknown(method: object) -> None:
    assert_answered(msgpack.packb([0, 9, method, [{}]]), 9, "unknown method")


def test_a_method_that_is_not_utf_8_is_unknown() -> None:
    assert_answered(b"\x94\x00\x09\xa2\xc3\x28\x91\x80", 9, "unknown method")


def test_ext_types_beside_the_map_are_answered_too() -> None:
    assert_answered(b"\x94\x00\x09\xd4\x01\x00\x91\x80", 9, "ext")
    assert_answered(b"\x94\x00\x09\xa1x\xd5\xff\x00\x00", 9, "ext")
    assert_answered(b"\x94\x00\x09\xd6\xff\x00\x00\x00\x01\x91\x80", 9, "ext")


def test_a_refusal_never_quotes_the_request() -> None:
    for members in ({"hunter2": msgpack.ExtType(1, b"hunter2")}, {"a": [{"hunter2": {1: "hunter2"}}]}):
        [found] = read(msgpack.packb([0, 1, "x", [members]]))
        assert isinstance(found, BadRequest)
        assert "hunter2" not in found.detail


# What closes


@pytest.mark.parametrize(
    "message",
    [
        [],
        [0],
        [0, 1],
        [0, 1, "x"],
        [0, 1, "x", [{}], 5],
        [2, "x"],
        [2, 1, "x", [{}]],
        [1, 1, None, {}],
        [1, 1, None, {"a": {1: 2}}],
        [3, 1, "x", [{}]],
        [-1, 1, "x", [{}]],
        [False, 1, "x", [{}]],
        [0.0, 1, "x", [{}]],
        ["0", 1, "x", [{}]],
        [None, 1, "x", [{}]],
        [0, -1, "x", [{}]],
        [0, 2**32, "x", [{}]],
        [0, 2**64 - 1, "x", [{}]],
        [0, 1.0, "x", [{}]],
        [0, True, "x", [{}]],
        [0, None, "x", [{}]],
        [0, "1", "x", [{}]],
        [0, b"1", "x", [{}]],
        [0, [], "x", [{}]],
        [0, -1, "x", [{1: 2}]],
        [0, msgpack.ExtType(1, b"1"), "x", [{}]],
        [0, msgpack.Timestamp(1), "x", [{}]],
        [msgpack.Timestamp(1), 1, "x", [{}]],
        {},
        {"a": 1},
        {1: 2},
        0,
        1.5,
        None,
        "ping",
        b"ping",
        msgpack.ExtType(5, b""),
        msgpack.Timestamp(1),
    ],
    ids=repr,
)
def test_messagepack_that_is_no_request(message: object) -> None:
    assert_closes(msgpack.packb(message), "request")


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\x94\xc1",
        b"\x94\x00\x01\xa1x\x91\x81\xa1a\xc1",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\xd5\xff\x00\x00",
        b"\x94\x00\xd5\xff\x00\x00\xa1x\x91\x80",
        b"\x95\x00\x01\xa1x\x91\x80\xd5\xff\x00\x00",
        b"\x94\xd4\xff\x00\x01\xa1x\x91\x80",
    ],
)
def test_garbage_closes(data: bytes) -> None:
    assert_closes(data)


@pytest.mark.parametrize("head", [b"\xdb\xff\xff\xff\xff", b"\xc6\x00\x20\x00\x00", b"\xdf\x00", b"\x92\x00", b"\xc7"])
def test_what_cannot_become_a_request_is_not_waited_for(head: bytes) -> None:
    reader = FrameReader()
    assert reader.feed(PING + head) == [PONG]
    assert isinstance(reader.broken, ProtocolError)


def nested(levels: int, opened: bytes, end: bytes) -> bytes:
    """A request of exactly ``levels`` levels, counted from its own array."""
    return request(b"\x81\xa1a" + opened * (levels - 3) + end)


@pytest.mark.parametrize(
    ("opened", "end"), [(b"\x91", b"\x01"), (b"\x81\xa1a", b"\x01"), (b"\x92\x01", b"\xa1x"), (b"\x91", b"\xc4\x00")]
)
def test_nesting_is_counted_from_the_request(opened: bytes, end: bytes) -> None:
    [found] = read(nested(64, opened, end))
    assert isinstance(found, Request)
    assert_closes(nested(65, opened, end), "deep")
    assert_closes(nested(1_000, opened, end))
    assert_closes(nested(5_000, opened, end))


def test_empty_containers_are_a_level() -> None:
    for end in (b"\x90", b"\x80"):
        [found] = read(nested(63, b"\x91", end))
        assert isinstance(found, Request)
        assert_closes(nested(64, b"\x91", end), "deep")


def test_nesting_closes_whatever_else_is_wrong() -> None:
    assert_closes(nested(65, b"\x91", b"\xd4\x01\x01"), "deep")
    assert_closes(nested(65, b"\x91", b"\xd6\xff\x00\x00\x00\x01"), "deep")
    assert_closes(nested(65, b"\x81\x01", b"\x01"), "deep")
    assert_closes(request(b"\x82\xa1a\x01\xa1a" + b"\x91" * 62 + b"\x01"), "deep")
    assert_closes(request(b"\x81" + b"\x91" * 62 + b"\x01\x01"), "deep")
    assert_closes(b"\x93\x02\xa1x" + b"\x91" * 64 + b"\x01", "deep")
    assert_closes(b"\x94\x00\x01" + b"\x91" * 64 + b"\x01\x91\x80", "deep")


def test_flaws_within_the_limit_are_answered() -> None:
    assert_answered(nested(64, b"\x91", b"\xd4\x01\x01"), 7, "ext")
    assert_answered(nested(64, b"\x91", b"\xd6\xff\x00\x00\x00\x01"), 7, "ext")
    assert_answered(nested(64, b"\x81\x01", b"\x01"), 7, "map keys")


@pytest.mark.parametrize("bomb", [b"\x91", b"\x81\x91", b"\x94", b"\xdc\x00\x01", b"\xdd\x00\x1f\xff\xff"])
def test_a_bomb_without_end_closes(bomb: bytes) -> None:
    reader = FrameReader()
    assert reader.feed(PING + request(b"\x81\xa1a" + bomb * 10_000)) == [PONG]
    assert isinstance(reader.broken, ProtocolError)


# Sizes


def frame_of(size: int) -> bytes:
    """A request of exactly ``size`` bytes."""
    head = b"\x94\x00\x07\xa1x\x91\x81\xa1a\xc6"
    body = bytes(size - len(head) - 4)
    return head + struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 300_000, FRAME_BYTES_MAX])
@pytest.mark.parametrize("before", [0, 1, 3_000])
def test_large_frames_up_to_the_limit(size: int, before: int) -> None:
    found = read(PING * before + frame_of(size) + PING)
    assert found[:before] == [PONG] * before
    large = found[before]
    assert isinstance(large, Request)
    assert large.params["a"] == bytes(size - 14)
    assert found[before + 1 :] == [PONG]


def test_a_frame_over_the_limit_closes() -> None:
    reader = FrameReader()
    assert reader.feed(PING + frame_of(FRAME_BYTES_MAX + 1)) == [PONG]
    assert "larger" in str(reader.broken)


def test_a_frame_over_the_limit_closes_before_it_is_whole() -> None:
    reader = FrameReader()
    reader.feed(b"\x94\x00\x07\xa1x\x91\x81\xa1a\xc6\xff\xff\xff\xff")
    fed = 0
    while reader.broken is None and fed < 2 * FRAME_BYTES_MAX:
        reader.feed(bytes(50_000))
        fed += 50_000
    assert "larger" in str(reader.broken)
    assert fed <= FRAME_BYTES_MAX + 50_000


def test_many_small_items_over_the_limit_close() -> None:
    reader = FrameReader()
    reader.feed(request(b"\x81\xa1a\xdd\xff\xff\xff\xff"))
    reader.feed(b"\x01" * (FRAME_BYTES_MAX + 1))
    assert "larger" in str(reader.broken)


def test_one_feed_may_hold_more_than_one_frame_may() -> None:
    reader = FrameReader()
    assert len(reader.feed(frame_of(1_500_000) * 3 + PING)) == 4
    assert reader.broken is None


def test_a_frame_that_comes_byte_by_byte() -> None:
    """Quadratic work would be 10**11 steps here."""
    reader = FrameReader()
    head = request(b"\x82\xa1a\xdd\x00\x01\x00\x00")
    data = head + b"\x90" * 65_536 + b"\xa1b\xc6\x00\x02\x00\x00" + b"y" * 131_072
    found = [incoming for byte in data for incoming in reader.feed(bytes([byte]))]
    assert found == [Request(7, "x", {"a": [[]] * 65_536, "b": b"y" * 131_072})]


def test_a_declared_length_reserves_no_memory() -> None:
    tracemalloc.start()
    try:
        readers = [FrameReader() for _ in range(20)]
        for reader in readers:
            reader.feed(request(b"\x81\xa1a" + b"\xdd\x00\x1f\xff\xff" * 50))
            reader.feed(b"\xc6\x00\x1f\xff\xff")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(reader.broken is None for reader in readers)
    assert peak < 20 * 200_000


def test_a_large_frame_is_not_paid_for_for_ever() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader()
        reader.feed(frame_of(FRAME_BYTES_MAX))
        reader.feed(PING)
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert current < 300_000


def test_keys_that_collide_on_purpose_cost_nothing() -> None:
    """Timestamps whose hashes are all equal: a dict of these would compare each with each."""
    count = 100_000
    keys = b"".join(
        b"\xd7\xff" + struct.pack(">Q", (number << 34) | (count - number)) + b"\x01" for number in range(count)
    )
    assert_answered(request(b"\x81\xa1a\xdf" + struct.pack(">I", count) + keys), 7, "map keys")


# Splits


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
PARAMS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        SCALARS | st.text(max_size=40) | st.binary(max_size=300),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.text(max_size=8), PARAMS) | st.sampled_from(["note", "flawed"]),
    max_size=6,
)
Spec = tuple[int, str, dict[str, Any]] | str


def frames_of(specs: Iterable[Spec]) -> tuple[bytes, list[Incoming], int]:
    """The bytes, what must come of them, and how many notifications are among them."""
    data, expected, notifications = b"", list[Incoming](), 0
    for spec in specs:
        if isinstance(spec, tuple):
            data += msgpack.packb([0, spec[0], spec[1], [spec[2]]])
            expected.append(Request(*spec))
        elif spec == "note":
            data += msgpack.packb([2, "note", [{}]])
            notifications += 1
        else:
            data += request(b"\x82\xa1a\x01\xa1a\x02")
            expected.append(BadRequest(7, "the member a is named twice"))
    return data, expected, notifications


@given(REQUESTS, st.data())
def test_where_the_bytes_are_split_does_not_matter(specs: list[Spec], data: st.DataObject) -> None:
    stream, expected, notifications = frames_of(specs)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    reader = FrameReader()
    found: list[Incoming] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == expected
    assert reader.broken is None
    assert reader.notifications == notifications


@given(REQUESTS, st.binary(min_size=1, max_size=60), st.integers(1, 20))
def test_whatever_comes_next_what_came_before_is_delivered(specs: list[Spec], noise: bytes, step: int) -> None:
    stream, expected, _ = frames_of(specs)
    whole, pieces = FrameReader(), FrameReader()
    found = whole.feed(stream + noise)
    assert found[: len(expected)] == expected
    rest = stream + noise
    piecewise = [item for at in range(0, len(rest), step) for item in pieces.feed(rest[at : at + step])]
    assert repr(piecewise) == repr(found)
    assert str(pieces.broken) == str(whole.broken)


@pytest.mark.parametrize("noise", [b"\x81\xc1", b"\x94\xc1", b"\xc1", b"\x94\x00\x81\xc1"])
def test_what_is_wrong_is_the_same_however_it_came(noise: bytes) -> None:
    whole, pieces = FrameReader(), FrameReader()
    whole.feed(noise)
    for at in range(len(noise)):
        pieces.feed(noise[at : at + 1])
    assert whole.broken is not None
    assert str(pieces.broken) == str(whole.broken)


# Answers


RESULT = {"result": "reserved", "proceed": True, "token": 2**53 - 1, "holder": None, "outcome": {"body": b"\xff"}}


def test_a_result_frame() -> None:
    assert msgpack.unpackb(encode_result(7, RESULT)) == [1, 7, None, RESULT]
    assert msgpack.unpackb(encode_result(2**32 - 1, {})) == [1, 2**32 - 1, None, {}]


def test_an_error_frame_is_a_string() -> None:
    text = "IDEMPOTENCY_INVALID_REQUEST: no such field: é"
    assert msgpack.unpackb(encode_error(7, text)) == [1, 7, text, None]


def test_text_goes_as_str_and_bytes_as_bin() -> None:
    assert b"\xa3abc" in encode_result(1, {"a": "abc"})
    assert b"\xc4\x03abc" in encode_result(1, {"a": b"abc"})


def test_a_batch_of_answers_is_their_frames_in_order() -> None:
    writer = FrameWriter()
    answers: list[tuple[int, str | None, object]] = [(1, None, RESULT), (2, "CODE: why", None), (3, None, {})]
    expected = encode_result(1, RESULT) + encode_error(2, "CODE: why") + encode_result(3, {})
    assert writer.encode(answers) == expected
    assert writer.encode(answers) == expected
    assert writer.encode([]) == b""


def test_an_answer_that_cannot_be_packed_leaves_nothing_behind() -> None:
    writer = FrameWriter()
    with pytest.raises(TypeError):
        writer.encode([(1, None, {}), (2, None, {"a": object()})])
    assert writer.encode([(3, None, {})]) == encode_result(3, {})


# Fields


@pytest.mark.parametrize(
    ("value", "text", "raw"),
    [
        ("abc", "abc", b"abc"),
        ("é😀", "é😀", "é😀".encode()),
        (b"abc", "abc", b"abc"),
        ("é".encode(), "é", "é".encode()),
        (b"\xff", None, b"\xff"),
        ("a\udcffb", None, b"a\xffb"),
        (b"\xed\xa0\x80", None, b"\xed\xa0\x80"),
        ("", "", b""),
        (b"", "", b""),
        (1, None, None),
        (None, None, None),
        ([], None, None),
    ],
)
def test_text_and_bytes_of_a_field(value: object, text: str | None, raw: bytes | None) -> None:
    assert text_of(value) == text
    assert bytes_of(value) == raw


@pytest.mark.parametrize("value", [b"\x01", b"\x90", b"\x80"])
def test_more_values_than_anybody_may_be_held_up_for_are_refused(value: bytes) -> None:
    def payload(count: int) -> bytes:
        return request(b"\x81\xa1p\xdd" + struct.pack(">I", count) + value * count)

    [found] = read(payload(VALUES_MAX - 10))
    assert isinstance(found, Request)
    [found] = read(payload(VALUES_MAX + 1))
    assert found == BadRequest(7, "there are more than 100000 values")


def test_a_map_where_a_request_should_be_closes_wherever_it_is_split() -> None:
    """One with a flaw in it, and a number where the msgid of a request is, is no request with a flaw."""
    data = b"\x82\x00\x02\xa4aaaa\xa2bb" + b"\xc0" * 4
    for cut in range(len(data)):
        reader = FrameReader()
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == []
        assert reader.broken is not None


@pytest.mark.parametrize(
    ("beginning", "msgid"),
    [
        (msgpack.packb([0, 2**32 - 1, "reserve", [{"key": "k"}]])[:-1], 2**32 - 1),
        (b"\xdd\x00\x00\x00\x04\x00\x05\xa7res", 5),
        (msgpack.packb([2, "reserve", [{}]])[:-1], None),
        (msgpack.packb([1, 5, None, {}])[:-1], None),
        (msgpack.packb([0, -1, "reserve", [{}]])[:-1], None),
        (msgpack.packb([0, "5", "reserve", [{}]])[:-1], None),
        (b"\x94\x00", None),
        (b"\x94\x00\xce\x00", None),
        (b"\xdd\xff\xff\xff\xff\x00\x05", None),
    ],
)
def test_a_request_is_known_by_its_beginning(beginning: bytes, msgid: int | None) -> None:
    reader = FrameReader()
    assert reader.feed(beginning) == []
    assert reader.pending_msgid == msgid


@pytest.mark.parametrize("seed", range(20))
def test_no_beginning_is_too_odd(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        reader = FrameReader()
        reader.feed(rng.choice([b"\x94", b"\x94\x00", b"\xdd\x00\x00\x00\x04"]) + rng.randbytes(rng.randrange(40)))
        assert reader.pending_msgid is None or 0 <= reader.pending_msgid < 2**32
