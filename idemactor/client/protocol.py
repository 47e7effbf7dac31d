"""The client's side of one MessagePack-RPC connection, without sockets: calls to bytes, bytes to answers.

The published protocol: request ``[0, msgid, method, params]``, response ``[1, msgid, error, result]``; answers come in
any order (contract, 6). A ``Protocol`` lives as long as its connection; what is outstanding then has no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgpack

from idemactor.client.errors import InvalidRequest, ProtocolViolation, TooLarge
from idemactor.core.limits import FRAME_BYTES_MAX
from idemactor.errors import Code

ANSWER_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The largest answer: a batch may bring back a thousand outcomes of the largest size."""

MSGID_MAX: Final = 2**32 - 1
"""The published protocol's: a msgid is a 32-bit unsigned integer."""

RESPONSE: Final = 1

_RESPONSE_LENGTH: Final = 4
_HEAD_BYTES_MAX: Final = 16
"""What precedes the body of a request: the array, its type and its msgid."""


@dataclass(frozen=True, slots=True)
class Response:
    """One answer as it came: ``error`` is None where there is a ``result``."""

    msgid: int
    error: Any
    result: Any


def encode_body(method: str, params: dict[str, Any]) -> bytes:
    """What of a request does not depend on the connection that it goes out on.

    Raises:
        InvalidRequest: A value has no MessagePack form.
        TooLarge: No server takes a frame of this size.
    """
    try:
        body: bytes = msgpack.packb(method) + b"\x91" + msgpack.packb(params, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(Code.INVALID_REQUEST, f"an argument of {method} cannot be sent: {error}") from None
    if len(body) + _HEAD_BYTES_MAX > FRAME_BYTES_MAX:
        raise TooLarge(Code.TOO_LARGE, f"a call has at most {FRAME_BYTES_MAX} bytes")
    return body


class Protocol:
    """The calls and answers of one connection."""

    __slots__ = ("_next", "_outstanding", "_unpacker")

    def __init__(self) -> None:
        self._next = 0
        self._outstanding: set[int] = set()
        self._unpacker = msgpack.Unpacker(raw=False, unicode_errors="surrogateescape", max_buffer_size=ANSWER_BYTES_MAX)

    @property
    def outstanding(self) -> int:
        """How many calls have no answer yet."""
        return len(self._outstanding)

    def request(self, body: bytes) -> tuple[int, bytes]:
        """The msgid and the frame of a call; ``body`` is from ``encode_body``."""
        while self._next in self._outstanding:
            self._next = self._next + 1 & MSGID_MAX
        msgid = self._next
        self._next = msgid + 1 & MSGID_MAX
        self._outstanding.add(msgid)
        return msgid, b"\x94\x00" + msgpack.packb(msgid) + body

    def receive(self, data: bytes) -> list[Response]:
        """The answers that ``data`` completes.

        Raises:
            ProtocolViolation: What came is no answer to anything that was asked.
        """
        try:
            self._unpacker.feed(data)
            return [self._response(message) for message in self._unpacker]
        except (ValueError, msgpack.UnpackException, RecursionError) as error:
            raise ProtocolViolation("the server sent what is not MessagePack") from error

    def _response(self, message: object) -> Response:
        if not isinstance(message, list) or len(message) != _RESPONSE_LENGTH or message[0] != RESPONSE:
            raise ProtocolViolation("the server sent what is no answer")
        _, msgid, error, result = message
        if type(msgid) is not int or msgid not in self._outstanding:
            raise ProtocolViolation("the server answered what nobody asked")
        self._outstanding.remove(msgid)
        return Response(msgid, error, result)
