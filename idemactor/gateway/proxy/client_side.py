"""The answer to one request, on its way to the client: written as it comes, and of no concern to whoever makes it.

A client that left, or that does not read, ends its own connection and nothing else: from then on everything written
here is dropped without a word, so that what was begun for the client is carried to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

import trio

from idemactor.gateway.proxy.answers import CONTENTLESS, RESET, Whole
from idemactor.gateway.proxy.call import AnswerHead
from idemactor.gateway.proxy.headers import answered, encoded, without
from idemactor.gateway.proxy.http1 import RequestHead
from idemactor.gateway.proxy.limits import WRITE_BYTES
from idemactor.server.tracing import Request

_MS_PER_S: Final = 1_000
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
_CHUNK_END: Final = b"0\r\n\r\n"


class ClientAnswer:
    """Writes one answer.

    Args:
        stream: The client's connection.
        head: The request.
        write_ms: The time for the client to take ``WRITE_BYTES``.
        keep_alive: Whether the connection may go on afterwards.
        date: The present moment as an HTTP date.

    Attributes:
        began: Whether a final status was written, or would have been.
        gone: Whether the client left, or did not read.
        keep_alive: Whether the connection can take another request.
        cut: Whether the answer ends unfinished.
        status: The final one; 0: none yet.
        traced: The request's trace; None: nobody follows it.
    """

    def __init__(
        self, stream: trio.abc.Stream, head: RequestHead, write_ms: int, date: Callable[[], str], *, keep_alive: bool
    ) -> None:
        self.began = False
        self.gone = False
        self.cut = False
        self.status = 0
        self.traced: Request | None = None
        self.keep_alive = keep_alive
        self._stream = stream
        self._head = head
        self._write_ms = write_ms
        self._date = date
        self._pending = bytearray()
        self._chunked = False
        self._silent = False

    async def whole(self, answer: Whole) -> None:
        """An answer of our own, or one that is replayed."""
        assert not self.began
        self.began = True
        if answer.close:
            self.keep_alive = False
        headers = [*answer.headers, ("Date", self._date())]
        # What is stored of an answer to HEAD has no body, and nobody knows any more how long a GET's would have been.
        content = answer.content
        if not answer.bodiless and (content or self._head.method != "HEAD"):
            headers.append(("Content-Length", str(len(content))))
        self._silent = answer.bodiless or self._head.method == "HEAD"
        self._put_head(answer.status, b"", headers)
        await self.finish(content)

    async def inform(self, head: AnswerHead) -> None:
        """A 1xx that came before the answer; HTTP/1.0 has none."""
        if self._head.minor == 1 and not self.began:
            self._pending += _lines(head.status, head.reason, answered(head.headers))
            await self._flush()

    def begin(self, head: AnswerHead, *more: tuple[str, str]) -> None:
        """The head of an upstream's answer; it leaves with the first bytes, or with ``flush``."""
        assert not self.began
        self.began = True
        headers = [*answered(head.headers), *more]
        coded = any(name.lower() == "transfer-encoding" for name, _ in head.headers)
        has_length = not coded and any(name.lower() == "content-length" for name, _ in headers)
        self._silent = head.status in CONTENTLESS or self._head.method == "HEAD"
        if coded or head.status in (204, RESET):
            headers = list(without(headers, "content-length"))
        if head.status == RESET:
            # Whoever knows that there is no content would take what an upstream sends all the same for the next answer.
            headers.append(("Content-Length", "0"))
        if not self._silent and not has_length:
            self._chunked = self._head.minor == 1
            if self._chunked:
                headers.append(("Transfer-Encoding", "chunked"))
            else:
                self.keep_alive = False
        self._put_head(head.status, head.reason, headers)

    async def data(self, data: bytes) -> None:
        """A part of the body, as it came."""
        self._put(data)
        await self._flush()

    async def finish(self, data: bytes = b"") -> None:
        """The last part of the body."""
        self._put(data)
        if self._chunked:
            self._pending += _CHUNK_END
        await self._flush()

    def abort(self) -> None:
        """The answer ends here, unfinished: the connection is reset, so that nobody takes it for the whole."""
        self.keep_alive = False
        self.cut = True

    def drop(self) -> None:
        """Have nothing to do with the client any more; its answer ends here."""
        self.gone = True
        self.abort()

    def _put_head(self, status: int, reason: bytes, headers: Sequence[tuple[str, str]]) -> None:
        self.status = status
        if not self.keep_alive:
            headers = [*headers, ("Connection", "close")]
        elif self._head.minor == 0:
            headers = [*headers, ("Connection", "keep-alive")]
        self._pending += _lines(status, reason, headers)

    def _put(self, data: bytes) -> None:
        if not data or self._silent:
            return
        if self._chunked:
            self._pending += b"%x\r\n%b\r\n" % (len(data), data)
        else:
            self._pending += data

    async def _flush(self) -> None:
        data, self._pending = self._pending, bytearray()
        if self.gone:
            return
        try:
            for start in range(0, len(data), WRITE_BYTES):
                with trio.fail_after(self._write_ms / _MS_PER_S):
                    await self._stream.send_all(memoryview(data)[start : start + WRITE_BYTES])
        except _BROKEN:
            self.gone = True
            self.keep_alive = False


def rendered(answer: Whole) -> bytes:
    """An answer to whoever is not let in; the connection is closed after it."""
    headers = [*answer.headers, ("Content-Length", str(len(answer.body))), ("Connection", "close")]
    return _lines(answer.status, b"", headers) + answer.body


def _lines(status: int, reason: bytes, headers: Sequence[tuple[str, str]]) -> bytes:
    # A server says which version it speaks, not in which it was asked (RFC 9112, section 2.3).
    lines = [b"HTTP/1.1 %d %b" % (status, reason or _phrase(status))]
    lines += [b"%b: %b" % pair for pair in encoded(headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Unknown"
