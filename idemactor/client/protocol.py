"""The client's side of one MessagePack-RPC connection, without sockets: calls to bytes, bytes to answers.

The published protocol: request ``[0, msgid, method, params]``, response ``[1, msgid, error, result]``; answers come in
any order (contract, 6). A ``Protocol`` lives as long as its connection; what is outstanding then has no answer.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, Final, Generic, TypeVar

import msgpack

from idemactor.client.errors import InvalidRequest, ProtocolViolation, TooLarge
from idemactor.core.limits import BATCH_ANSWER_BYTES_MAX, FRAME_BYTES_MAX
from idemactor.errors import Code

ANSWER_BYTES_MAX: Final = 2 * BATCH_ANSWER_BYTES_MAX
"""The largest answer: that of a batch, whose outcomes are bounded and far more than all else in it."""

MSGID_MAX: Final = 2**32 - 1
"""The published protocol's: a msgid is a 32-bit unsigned integer."""

RESPONSE: Final = 1

T = TypeVar("T")

Response = tuple[T, Any, Any]
"""One answer as it came: whose it is, an error (None where there is a result), and a result."""

_RESPONSE_LENGTH: Final = 4
_HEAD: Final = b"\x94\x00\xce"
"""An array of four, its type, and the mark of a msgid of four bytes: one length for all of them is quickest made."""

_MSGID_BYTES: Final = 4


@functools.cache
def _method(name: str) -> bytes:
    """A method, and the array of its one parameter."""
    packed: bytes = msgpack.packb(name)
    return packed + b"\x91"


def encode_body(method: str, params: dict[str, Any]) -> bytes:
    """What of a request does not depend on the connection that it goes out on.

    Raises:
        InvalidRequest: A value has no MessagePack form.
        TooLarge: No server takes a frame of this size.
    """
    try:
        body: bytes = _method(method) + msgpack.packb(params)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(Code.INVALID_REQUEST, f"an argument of {method} cannot be sent: {error}") from None
    if len(body) + len(_HEAD) + _MSGID_BYTES > FRAME_BYTES_MAX:
        raise TooLarge(Code.TOO_LARGE, f"a call has at most {FRAME_BYTES_MAX} bytes")
    return body


def encode_call(method: str, params: dict[str, Any], parent: str | None) -> bytes:
    """As ``encode_body``; ``parent`` goes with it, unless that alone would make it too large."""
    if parent is None:
        return encode_body(method, params)
    try:
        return encode_body(method, {**params, "traceparent": parent})
    except TooLarge:
        return encode_body(method, params)


class Protocol(Generic[T]):
    """The calls of one connection, each with whose it is, and their answers."""

    __slots__ = ("_next", "_outstanding", "_unpacker")

    def __init__(self) -> None:
        self._next = 0
        self._outstanding: dict[int, T] = {}
        self._unpacker = msgpack.Unpacker(raw=False, unicode_errors="surrogateescape", max_buffer_size=ANSWER_BYTES_MAX)

    @property
    def outstanding(self) -> Collection[T]:
        """Whose calls have no answer yet, in the order in which they were made."""
        return self._outstanding.values()

    def request(self, body: bytes, call: T) -> bytes:
        """The frame of a call; ``body`` is from ``encode_body``."""
        msgid = self._next
        while msgid in self._outstanding:
            msgid = msgid + 1 & MSGID_MAX
        self._next = msgid + 1 & MSGID_MAX
        self._outstanding[msgid] = call
        return _HEAD + msgid.to_bytes(_MSGID_BYTES, "big") + body

    def receive(self, data: bytes) -> list[Response[T]]:
        """The answers that ``data`` completes.

        Raises:
            ProtocolViolation: What came is no answer to anything that was asked.
        """
        try:
            self._unpacker.feed(data)
            return [self._response(message) for message in self._unpacker]
        except (ValueError, msgpack.UnpackException, RecursionError) as error:
            raise ProtocolViolation("the server sent what is not MessagePack") from error

    def _response(self, message: object) -> Response[T]:
        if not isinstance(message, list) or len(message) != _RESPONSE_LENGTH or message[0] != RESPONSE:
            raise ProtocolViolation("the server sent what is no answer")
        _, msgid, error, result = message
        if type(msgid) is not int or msgid not in self._outstanding:
            raise ProtocolViolation("the server answered what nobody asked")
        return self._outstanding.pop(msgid), error, result
