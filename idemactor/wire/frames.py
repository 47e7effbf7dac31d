"""MessagePack-RPC frames: bytes to requests and answers to bytes, without sockets (contract, 6 and 12).

The frame is found first and built second. A skipper (it walks MessagePack in C, builds nothing, and resumes
where the bytes ended) says where a frame ends; only a whole frame is unpacked. So a peer that never finishes
a frame costs its bytes and nothing more, a declared length reserves no memory, and no byte is looked at
twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import msgpack

from idemactor.core.limits import FRAME_BYTES_MAX
from idemactor.wire.rpc_message import (
    BadRequest,
    Incoming,
    ProtocolError,
    Request,
    bytes_of,
    decode,
    msgid_of_beginning,
    text_of,
)

__all__ = [
    "BadRequest",
    "FrameReader",
    "FrameWriter",
    "Incoming",
    "ProtocolError",
    "Request",
    "bytes_of",
    "encode_error",
    "encode_result",
    "text_of",
]

RESPONSE: Final = 1

_FIRST_BYTES: Final = b"\x93\x94\xdc\xdd"
"""How an array of three or four items begins: nothing else can become a request or a notification."""

_ENVELOPE_BYTES: Final = 32
"""More than a request takes up to its id."""
_CHUNK_BYTES: Final = 65_536
"""How much is handed to the skipper at once; its buffer never holds more than a frame and this."""
_SKIPPER_BYTES: Final = 4_096
"""The first size of the skipper's buffer. It grows with what a frame needs."""
_SKIPPER_KEPT_BYTES: Final = 262_144
"""A frame larger than this takes the skipper with it, so that one large frame is not paid for for ever."""
_PACKER_KEPT_BYTES: Final = 262_144
"""The same of what packs: its buffer never shrinks."""


class FrameReader:
    """The receiving side of one connection.

    Attributes:
        broken: Why the connection must be closed, once it must; whatever comes after that is ignored.
        notifications: How many notifications came and were dropped.
    """

    __slots__ = ("_fed", "_grown", "_pending", "_skipper", "broken", "notifications")

    def __init__(self) -> None:
        self.broken: ProtocolError | None = None
        self.notifications = 0
        self._renew()

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._pending)

    @property
    def pending_bytes(self) -> int:
        """How much has come of a frame that has not ended."""
        return len(self._pending)

    @property
    def pending_msgid(self) -> int | None:
        """The id of the request that has begun and not ended; None where it has none, or is not that far."""
        return msgid_of_beginning(self._pending[:_ENVELOPE_BYTES])

    def feed(self, data: bytes) -> list[Incoming]:
        """The calls that ``data`` completes, in order, up to the first bytes that break the connection.

        Never raises for what a peer sent: see ``broken``.
        """
        found: list[Incoming] = []
        try:
            for start in range(0, len(data), _CHUNK_BYTES):
                if self.broken is None:
                    self._feed_chunk(data[start : start + _CHUNK_BYTES], found)
        except ProtocolError as error:
            self._renew()
            # Another one: that which was raised knows the frames of our own calls, and so this reader, and neither
            # would be given back before somebody looks for cycles.
            self.broken = ProtocolError(*error.args)
        return found

    def forget(self) -> None:
        """The connection is over: what came of a frame that has not ended is given back at once."""
        self._renew()

    def _renew(self) -> None:
        self._skipper = msgpack.Unpacker(read_size=_SKIPPER_BYTES, max_buffer_size=FRAME_BYTES_MAX + _CHUNK_BYTES)
        self._pending = bytearray()
        self._fed = 0
        self._grown = False

    def _feed_chunk(self, chunk: bytes, found: list[Incoming]) -> None:
        skipper = self._skipper
        skipper.feed(chunk)
        start, size = 0, len(chunk)
        try:
            while start < size:
                skipper.skip()
                end = skipper.tell() - self._fed
                self._take(chunk[start:end], found)
                start = end
        except msgpack.OutOfData:
            pass
        except (msgpack.FormatError, msgpack.StackError):
            # How it begins is said first, as where its first bytes come alone.
            _check_first_byte((self._pending or chunk[start:])[0])
            raise ProtocolError("not MessagePack, or nested without end") from None
        self._keep(chunk, start)

    def _keep(self, chunk: bytes, start: int) -> None:
        """The chunk ended: what belongs to a frame that goes on waits for the rest of it."""
        self._fed += len(chunk)
        if start == len(chunk):
            if self._grown:
                self._renew()
            return
        self._pending += memoryview(chunk)[start:]
        _check_first_byte(self._pending[0])
        if len(self._pending) > FRAME_BYTES_MAX:
            raise ProtocolError(f"a frame is larger than {FRAME_BYTES_MAX} bytes")

    def _take(self, tail: bytes, found: list[Incoming]) -> None:
        """A frame is whole: what was kept of it, and ``tail``."""
        frame: bytes | bytearray = tail
        if self._pending:
            frame = self._pending
            frame += tail
            self._pending = bytearray()
        _check_first_byte(frame[0])
        if len(frame) > FRAME_BYTES_MAX:
            raise ProtocolError(f"a frame is larger than {FRAME_BYTES_MAX} bytes")
        self._grown = self._grown or len(frame) > _SKIPPER_KEPT_BYTES
        incoming = decode(frame)
        if incoming is None:
            self.notifications += 1
        else:
            found.append(incoming)


def _check_first_byte(byte: int) -> None:
    if byte not in _FIRST_BYTES:
        raise ProtocolError("not a MessagePack-RPC request")


class FrameWriter:
    """The sending side of one connection. Text goes as ``str``, bytes as ``bin``."""

    __slots__ = ("_packer",)

    def __init__(self) -> None:
        self._packer = _packer()

    def encode(self, answers: Iterable[tuple[int, str | None, object]], enough: float = math.inf) -> bytes:
        """The frames of ``answers``, each (msgid, error or None, result or None), as one piece of bytes.

        Args:
            answers: Taken one by one, those that are not taken stay there.
            enough: With so many bytes no further answer is taken.
        """
        packer = self._packer
        try:
            for msgid, error, result in answers:
                packer.pack((RESPONSE, msgid, error, result))
                if len(packer.getbuffer()) >= enough:
                    break
            frames: bytes = packer.bytes()
            if len(frames) > _PACKER_KEPT_BYTES:
                self._packer = _packer()
            return frames
        finally:
            # Also after an answer that cannot be packed: half a frame must not lead the next ones.
            packer.reset()


def _packer() -> msgpack.Packer:
    return msgpack.Packer(use_bin_type=True, autoreset=False)


def encode_result(msgid: int, result: dict[str, Any]) -> bytes:
    """The frame of one result, a refusal of the state table included."""
    return FrameWriter().encode([(msgid, None, result)])


def encode_error(msgid: int, text: str) -> bytes:
    """The frame of one error: a string, ``CODE: detail``, because several clients take nothing else."""
    return FrameWriter().encode([(msgid, text, None)])
