"""How the load generators speak: calls are encoded by hand, answers are read just far enough to know what they say.

One object for each connection. MessagePack-RPC answers name their call; HTTP and RESP answer in the order of the calls.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgpack

Answer = tuple[int, str, int]
"""The number of the call, the word of the answer ("" for an error), and the token, 0 where there is none."""

LEASE_MS: Final = 3_600_000
"""Longer than a run, for everybody: what one subject left must not expire while another is measured."""

COMPARE_AND_DELETE: Final = (
    b"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
)
"""Redis's documented way to let go of a lock that is held by a token."""


class Speaker(ABC):
    """One side of one connection."""

    @abstractmethod
    def reserve(self, number: int, key: bytes) -> bytes:
        """The bytes that ask to be the holder of ``key``."""

    @abstractmethod
    def commit(self, number: int, key: bytes, token: int) -> bytes:
        """The bytes that end the attempt which ``token`` proves."""

    @abstractmethod
    def read(self, data: bytes) -> Iterator[Answer]:
        """The answers that are complete with ``data``."""


class RpcSpeaker(Speaker):
    """MessagePack-RPC, as an idemactor server speaks it."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(raw=False, use_list=False)

    def reserve(self, number: int, key: bytes) -> bytes:
        """One request frame."""
        head = b"\x94\x00\xce" + struct.pack(">I", number) + b"\xa7reserve\x91\x82\xa9namespace\xa7default\xa3key"
        return head + b"\xd9" + bytes((len(key),)) + key

    def commit(self, number: int, key: bytes, token: int) -> bytes:
        """One request frame."""
        head = b"\x94\x00\xce" + struct.pack(">I", number) + b"\xa6commit\x91\x83\xa9namespace\xa7default\xa3key"
        return head + b"\xd9" + bytes((len(key),)) + key + b"\xa5token\xcf" + struct.pack(">Q", token)

    def read(self, data: bytes) -> Iterator[Answer]:
        """Answers in any order."""
        self._unpacker.feed(data)
        for _, number, error, result in self._unpacker:
            if error is None:
                yield number, result["result"], result.get("token", 0)
            else:
                yield number, "", 0


class _InOrder(Speaker):
    """What protocols share that answer in order: the numbers of the calls that wait, and bytes that are no answer yet.

    Attributes:
        _calls: Number, and the word for an answer that says nothing but yes.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[int, str]] = deque()
        self._rest = b""


class HttpSpeaker(_InOrder):
    """HTTP/1.1 with keep-alive. ``paths`` is where a server has reserve and commit."""

    def __init__(self, paths: tuple[str, str] = ("/v1/default/reserve", "/v1/default/commit")) -> None:
        super().__init__()
        heads = [f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n" for path in paths]
        self._reserve, self._commit = (head.encode() + b"Content-Length: %d\r\n\r\n%b" for head in heads)

    def reserve(self, number: int, key: bytes) -> bytes:
        """One request."""
        self._calls.append((number, "reserved"))
        body = b'{"key":"%b"}' % key
        return self._reserve % (len(body), body)

    def commit(self, number: int, key: bytes, token: int) -> bytes:
        """One request."""
        self._calls.append((number, "committed"))
        body = b'{"key":"%b","token":%d}' % (key, token)
        return self._commit % (len(body), body)

    def read(self, data: bytes) -> Iterator[Answer]:
        """Answers in the order of the calls."""
        data = self._rest + data
        at = 0
        while (body_at := data.find(b"\r\n\r\n", at) + 4) > 3:
            end = body_at + _content_length(data[at:body_at])
            if end > len(data):
                break
            number, _ = self._calls.popleft()
            body = data[body_at:end]
            yield number, _member(body, b'"result":"', b'"'), int(_member(body, b'"token":', b",}") or 0)
            at = end
        self._rest = data[at:]


class GatewaySpeaker(HttpSpeaker):
    """Orders through a gateway: the key in its header. The upstream answers with the word that a new key is owed."""

    method = b"POST"

    def reserve(self, number: int, key: bytes) -> bytes:
        """One order."""
        self._calls.append((number, "reserved"))
        head = b"%b /orders HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nIdempotency-Key: %b\r\n"
        return head % (self.method, key) + b"Content-Length: 15\r\n\r\n" + b'{"quantity": 1}'


class PassingSpeaker(GatewaySpeaker):
    """The same by a method that a gateway passes on as it is."""

    method = b"PUT"


def _content_length(head: bytes) -> int:
    value = head.lower().partition(b"\r\ncontent-length:")[2]
    return int(value.partition(b"\r\n")[0])


def _member(body: bytes, name: bytes, ends: bytes) -> str:
    """The text of a JSON member up to the first of ``ends``; "" where there is none. Enough for answers we know."""
    _, found, value = body.partition(name)
    if not found:
        return ""
    places = (value.find(end) for end in struct.unpack(f"{len(ends)}c", ends))
    return value[: min(at for at in places if at >= 0)].decode()


class RespSpeaker(_InOrder):
    """Redis: ``SET key token NX PX``, and a Lua compare-and-delete as the end of a cycle."""

    def reserve(self, number: int, key: bytes) -> bytes:
        """One command; the call's number is its token."""
        self._calls.append((number, "reserved"))
        return _resp(b"SET", key, b"%d" % number, b"NX", b"PX", b"%d" % LEASE_MS)

    def commit(self, number: int, key: bytes, token: int) -> bytes:
        """One command."""
        self._calls.append((number, "committed"))
        return _resp(b"EVAL", COMPARE_AND_DELETE, b"1", key, b"%d" % token)

    def read(self, data: bytes) -> Iterator[Answer]:
        """Answers in the order of the calls: ``+OK``, ``:1`` and ``$-1`` (there is one already) are all there are."""
        *lines, self._rest = (self._rest + data).split(b"\r\n")
        for line in lines:
            number, word = self._calls.popleft()
            yes = line in (b"+OK", b":1")
            yield number, (word if yes else "completed" if line == b"$-1" else ""), number


def _resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


SPEAKERS: Final = {
    "rpc": RpcSpeaker,
    "http": HttpSpeaker,
    "resp": RespSpeaker,
    "gateway": GatewaySpeaker,
    "passing": PassingSpeaker,
}
