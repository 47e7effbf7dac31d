"""The connection's protocol, addresses and leases, without any event loop."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from idemactor.client.address import TcpAddress, UnixAddress, parse_address
from idemactor.client.backoff import LONGEST_S, Backoff
from idemactor.client.errors import (
    AlreadyCommittedError,
    InFlightError,
    InvalidRequest,
    ProtocolViolation,
    Refused,
    TooLarge,
    Unavailable,
)
from idemactor.client.lease import Lease
from idemactor.client.protocol import ANSWER_BYTES_MAX, Protocol, encode_body
from idemactor.client.results import Committed, Completed, Outcome, error_of, result_of
from idemactor.core import record as wire
from idemactor.core.commands import Get
from idemactor.core.keys import Identity
from idemactor.core.limits import (
    BATCH_ANSWER_BYTES_MAX,
    BATCH_OPS_MAX,
    HOLDER_CHARS_MAX,
    KEY_CHARS_MAX,
    REASON_CHARS_MAX,
)
from idemactor.core.replies import Found
from idemactor.errors import Code
from idemactor.server.backlog import OUTCOME_BYTES_SMALL
from idemactor.wire.answers import body_of
from idemactor.wire.fields import Dialect
from idemactor.wire.frames import FrameReader, Request, encode_error, encode_result


def msgid_of(frame: bytes) -> int:
    [request] = FrameReader().feed(frame)
    assert isinstance(request, Request)
    return request.msgid


def test_requests_are_what_the_server_reads() -> None:
    protocol, reader = Protocol[str](), FrameReader()
    params: dict[str, Any] = {"namespace": "trade", "key": "ké", "payload": {"n": [1, 2.5, None, b"\xff"]}}
    frames = [protocol.request(encode_body("reserve", params), call) for call in "abc"]
    found = reader.feed(b"".join(frames))
    assert found == [Request(msgid, "reserve", params) for msgid in range(3)]
    assert list(protocol.outstanding) == ["a", "b", "c"]


def test_answers_come_in_any_order_and_in_any_pieces() -> None:
    seed = random.randrange(2**32)
    print(f"replay with seed {seed}")
    chance = random.Random(seed)
    protocol = Protocol[int]()
    asked = [msgid_of(protocol.request(encode_body("ping", {}), msgid)) for msgid in range(200)]
    chance.shuffle(asked)
    stream = b"".join(encode_error(m, f"C: {m}") if m % 3 else encode_result(m, {"m": m}) for m in asked)
    got = []
    while stream:
        size = chance.randint(1, 40)
        got += protocol.receive(stream[:size])
        stream = stream[size:]
    assert [msgid for msgid, _, _ in got] == asked
    assert all((error == f"C: {m}") if m % 3 else result == {"m": m} for m, error, result in got)
    assert not protocol.outstanding


@pytest.mark.parametrize(
    "message",
    [[1, 7, None, None], [1, 0, None], [0, 0, "m", []], [1, "0", None, None], {"a": 1}, 5, [1, True, None, None]],
)
def test_what_is_no_answer_breaks_the_connection(message: object) -> None:
    protocol = Protocol[None]()
    protocol.request(encode_body("ping", {}), None)
    with pytest.raises(ProtocolViolation):
        protocol.receive(msgpack.packb(message))


def test_an_answer_counts_once_and_a_msgid_is_not_reused_while_it_is_out() -> None:
    protocol = Protocol[None]()
    first = msgid_of(protocol.request(encode_body("ping", {}), None))
    protocol._next = first
    second = msgid_of(protocol.request(encode_body("ping", {}), None))
    assert second != first
    protocol.receive(encode_result(first, {}))
    with pytest.raises(ProtocolViolation):
        protocol.receive(encode_result(first, {}))


def test_msgids_stay_in_32_bits() -> None:
    protocol = Protocol[None]()
    protocol._next = 2**32 - 1
    assert [msgid_of(protocol.request(encode_body("ping", {}), None)) for _ in range(2)] == [2**32 - 1, 0]


def test_what_cannot_be_sent_is_refused_before_it_is() -> None:
    with pytest.raises(InvalidRequest):
        encode_body("reserve", {"payload": {1, 2}})
    with pytest.raises(TooLarge):
        encode_body("reserve", {"payload": "x" * 2_200_000})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:8788", TcpAddress("localhost", 8788)),
        ("[::1]:8788", TcpAddress("::1", 8788)),
        ("unix:/run/x.sock", UnixAddress("/run/x.sock")),
    ],
)
def test_addresses(text: str, address: object) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "h:0", "h:65536", "h:x", "::1:80", "unix:", "h:²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        parse_address(text)


def test_a_lease_is_trusted_from_the_question_and_not_from_the_answer() -> None:
    lease = Lease(asked_s=100, answered_s=101, granted_at=5_000, expires_at=8_000)
    assert lease.deadline_s == 103
    assert lease.renew_s == 101
    assert lease.is_old(101)
    assert not lease.is_over(102.9)
    assert lease.is_over(103)
    lease.renewed(asked_s=101.5, expires_at=9_000)
    assert lease.deadline_s == 104.5
    assert lease.renew_s == 102.5


def test_an_extension_that_was_cut_is_not_trusted_beyond_its_end() -> None:
    lease = Lease(asked_s=100, answered_s=100, granted_at=0, expires_at=3_000)
    lease.renewed(asked_s=102, expires_at=4_000)
    assert lease.deadline_s == 104


def test_waits_double_up_to_a_bound_and_start_over() -> None:
    backoff = Backoff()
    waits = [backoff.next_s() for _ in range(12)]
    assert waits[0] <= 0.02
    assert LONGEST_S / 2 <= waits[-1] <= LONGEST_S
    backoff.reset()
    assert backoff.next_s() <= 0.02


def test_every_code_has_its_exception() -> None:
    for code in Code:
        assert type(error_of(f"{code}: x")) is not Refused or code in (
            Code.UNSUPPORTED_MEDIA_TYPE,
            Code.METHOD_NOT_ALLOWED,
            Code.UPSTREAM_FAILED,
        )
    assert isinstance(error_of("IDEMPOTENCY_UNAVAILABLE: x"), Unavailable)
    unknown = error_of("SOMETHING_NEW: later")
    assert isinstance(unknown, Refused)
    assert (unknown.code, unknown.detail) == ("SOMETHING_NEW", "later")


def test_refusals_carry_what_the_caller_needs() -> None:
    members = {
        "result": "in_flight",
        "code": Code.IN_FLIGHT,
        "attempt": 2,
        "holder": "h",
        "reserved_at": 1,
        "lease_expires_at": 2,
        "retry_after_ms": 3,
    }
    with pytest.raises(InFlightError) as caught:
        result_of("reserve", members)
    error = caught.value
    assert (error.attempt, error.holder, error.reserved_at, error.lease_expires_at) == (2, "h", 1, 2)
    assert error.retry_after_ms == 3
    assert "holds the key" in str(error)
    with pytest.raises(AlreadyCommittedError) as late:
        result_of("release", {"result": "already_committed", "code": Code.ALREADY_COMMITTED, "committed_at": 4})
    assert late.value.committed_at == 4


def test_results_are_typed() -> None:
    assert result_of("commit", {"result": "committed", "expires_at": 5, "repeated": True}) == Committed(5, True)
    members = {"result": "completed", "operation_id": "o", "committed_at": 1, "expires_at": 2}
    outcome = {"status": 200, "headers": [["a", "b"]], "body": b"\xff"}
    found = Completed("o", 1, 2, Outcome(200, (("a", "b"),), b"\xff"), rejected=False)
    assert result_of("accept", members | {"outcome": outcome}) == found
    omitted = result_of("accept", members | {"outcome": {"status": 200, "headers": [], "omitted": True}})
    assert isinstance(omitted, Completed)
    assert omitted.outcome == Outcome(200, omitted=True)


@pytest.mark.parametrize("members", [None, [], {}, {"result": "reserved"}, {"result": "committed", "expires_at": 1}])
def test_members_that_are_missing_are_no_success(members: object) -> None:
    with pytest.raises(ProtocolViolation):
        result_of("commit", members)


def test_the_largest_answer_of_a_batch_fits() -> None:
    """Whatever shape the outcomes have, they take no more than they count for, and all else in an answer is small."""
    text = "\N{GRINNING FACE}"
    record = wire.Record(
        wire.State.COMMITTED, 2**53, 2**53, "o" * 36, 2**53, 2**53, holder=text * HOLDER_CHARS_MAX,
        reason=text * REASON_CHARS_MAX, committed_at=2**53, expires_at=2**53, contested=True,
    )  # fmt: skip
    shapes = [
        wire.Outcome(599, (), bytes(100_000)),
        wire.Outcome(599, (("x", ""),) * 30_000),
        wire.Outcome(599, ((text * 100, text * 10_000),) * 3, b"x"),
    ]
    rest = 0
    for outcome in shapes:
        reply = Found(text * KEY_CHARS_MAX, replace(record, outcome=outcome))
        body = body_of(reply, Get(Identity("t", "n", "k")), operator=True, dialect=Dialect.MSGPACK)
        size = len(msgpack.packb(body))
        rest = max(rest, size - outcome.cost())
    assert 0 < rest < 8_192
    assert BATCH_ANSWER_BYTES_MAX + BATCH_OPS_MAX * (rest + OUTCOME_BYTES_SMALL) < ANSWER_BYTES_MAX
