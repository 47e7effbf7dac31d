"""HTTP/1.1 requests as a gateway reads them (RFC 9112): strict wherever two parties could read differently. Pure.

A gateway stands between parties that each have a parser of their own; what they disagree on is what request smuggling
lives on. So nothing is mended here: a bare line feed, a folded line, a second length, a length beside a transfer
coding or a chunk that is not exactly one is refused, and the connection ends with the refusal. What passes is handed on
with one ``Content-Length`` of our own making.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

HEAD_END: Final = b"\r\n\r\n"
BARE_END: Final = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")
"""Half of what ends a line (RFC 9112, section 2.2): some take it for the whole. A CR that came last is none yet."""
FIELDS_MAX: Final = 100
"""How many header fields a request may have."""
CHUNK_LINE_BYTES_MAX: Final = 256
"""The longest line before a chunk, its extensions included."""
TRAILER_BYTES_MAX: Final = 4_096
"""The most that may follow the last chunk."""

# RFC 9110, section 5.6.2 (token) and 5.5 (field values: visible ASCII, obs-text, spaces and tabs).
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_HOST: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:\[\]%-]*")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")


class Refused(Exception):
    """A request that is not taken; its connection is closed after the answer.

    Attributes:
        status: The HTTP status to answer with.
        detail: One sentence for people, which quotes nothing that was sent.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class Framing(enum.Enum):
    """How the end of a request's body is found."""

    LENGTH = enum.auto()
    CHUNKED = enum.auto()


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request line and its fields, as they were sent.

    Attributes:
        method: In the case it was sent in.
        target: Path and query, not decoded.
        minor: The minor version of HTTP/1: 0 or 1.
        headers: Names as sent, values without the white space around them; Latin-1, so that every byte comes back.
        framing: How its body ends.
        length: The bytes of its body, 0 where it is chunked.
    """

    method: str
    target: str
    minor: int
    headers: tuple[tuple[str, str], ...]
    framing: Framing
    length: int

    def values(self, name: str) -> list[str]:
        """Every value of a field, in order; ``name`` in lower case."""
        return [value for known, value in self.headers if known.lower() == name]

    def tokens(self, name: str) -> set[str]:
        """The members of a field that is a list, in lower case."""
        return {part.strip().lower() for value in self.values(name) for part in value.split(",")} - {""}

    @property
    def keeps_alive(self) -> bool:
        """Whether the client may send another request on this connection (RFC 9112, section 9.3)."""
        options = self.tokens("connection")
        return "close" not in options and (self.minor == 1 or "keep-alive" in options)

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for a 100 before it sends the body (RFC 9110, section 10.1.1)."""
        return self.minor == 1 and bool(self.tokens("expect"))

    @property
    def has_body(self) -> bool:
        """Whether bytes follow the head."""
        return self.framing is Framing.CHUNKED or self.length > 0


def parse_head(data: bytes) -> RequestHead:
    """The head of a request.

    Args:
        data: From the request line to the empty line, which is included.

    Raises:
        Refused: 400, 417, 431, 501 or 505.
    """
    lines = data[: -len(HEAD_END)].split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise Refused(400, "The request line is not that of HTTP/1.1.")
    method, target, major, minor = match.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        raise Refused(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    if len(lines) - 1 > FIELDS_MAX:
        raise Refused(431, f"There are more than {FIELDS_MAX} header fields.")
    head = RequestHead(method.decode(), target.decode(), int(minor), read_fields(lines[1:]), Framing.LENGTH, 0)
    _check_target(head)
    _check_host(head)
    if head.tokens("expect") - {"100-continue"}:
        raise Refused(417, "Only 100-continue can be expected here.")
    framing, length = _framing(head)
    return RequestHead(head.method, head.target, head.minor, head.headers, framing, length)


def read_fields(lines: Iterable[bytes]) -> tuple[tuple[str, str], ...]:
    """The fields of a head, a line each, without the white space around their values. Raises: Refused, 400."""
    fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            # A folded line begins with white space and ends here too, and so does a bare CR or LF.
            raise Refused(400, "A header field is not well formed.")
        fields.append((match[1].decode(), match[2].strip(b" \t").decode("latin-1")))
    return tuple(fields)


def _check_target(head: RequestHead) -> None:
    if head.method == "CONNECT":
        raise Refused(501, "This is no forward proxy.")
    if not head.target.startswith("/") or "#" in head.target:
        raise Refused(400, "The request target is a path and a query.")


def _check_host(head: RequestHead) -> None:
    """RFC 9112, section 3.2: exactly one, and it is a 400 otherwise."""
    hosts = head.values("host")
    if len(hosts) > 1 or (not hosts and head.minor == 1) or not all(_HOST.fullmatch(host) for host in hosts):
        raise Refused(400, "There has to be one Host.")


def _framing(head: RequestHead) -> tuple[Framing, int]:
    """RFC 9112, section 6.3, without its leniency."""
    codings, lengths = head.values("transfer-encoding"), head.values("content-length")
    if codings and (lengths or head.minor == 0):
        raise Refused(400, "The length of the request is ambiguous.")
    if codings:
        if len(codings) > 1 or codings[0].lower() != "chunked":
            raise Refused(501, "The only transfer coding is chunked.")
        return Framing.CHUNKED, 0
    if len(lengths) > 1 or any(_LENGTH.fullmatch(length) is None for length in lengths):
        raise Refused(400, "There is one Content-Length at most, a number.")
    return Framing.LENGTH, int(lengths[0]) if lengths else 0


class BodyReader:
    """Takes the body of one request out of what a connection brought.

    Args:
        head: Whose body it is.
        max_bytes: The most it may have.

    Raises:
        Refused: On construction, 413: the announced length is more.
    """

    def __init__(self, head: RequestHead, max_bytes: int) -> None:
        self.done = not head.has_body
        self._max_bytes = max_bytes
        self._chunked = head.framing is Framing.CHUNKED
        self._left = head.length
        self._in_chunk = False
        self._trailer_bytes = -1
        self._body = bytearray()
        if head.length > max_bytes:
            self._refuse_size()

    @property
    def held_bytes(self) -> int:
        """How much of it was read and not taken."""
        return len(self._body)

    def taken(self) -> bytes:
        """What was read so far; it is kept here no longer."""
        body = bytes(self._body)
        self._body.clear()
        return body

    def feed(self, buffer: bytearray) -> None:
        """Take from ``buffer`` what belongs to the body; what is left over belongs to the next request.

        Raises:
            Refused: 400: a chunk or the trailer is not well formed; 413: it is too large.
        """
        while not self.done and (self._take(buffer) if not self._chunked or self._in_chunk else self._line(buffer)):
            pass

    def _take(self, buffer: bytearray) -> bool:
        """Body bytes; in chunks also the end of line behind them."""
        taken = min(self._left, len(buffer))
        self._body += buffer[:taken]
        del buffer[:taken]
        self._left -= taken
        if self._left:
            return False
        if not self._chunked:
            self.done = True
            return True
        if not b"\r\n".startswith(buffer[:2]):
            raise Refused(400, "A chunk does not end where it should.")
        if len(buffer) < 2:
            return False
        del buffer[:2]
        self._in_chunk = False
        return True

    def _line(self, buffer: bytearray) -> bool:
        """The line before a chunk, or one of the trailer."""
        limit = CHUNK_LINE_BYTES_MAX if self._trailer_bytes < 0 else TRAILER_BYTES_MAX - self._trailer_bytes
        end = buffer.find(b"\r\n", 0, limit + 2)
        if end < 0:
            if len(buffer) >= limit + 2:
                raise Refused(400, "The line before a chunk, or the trailer, is too long.")
            if BARE_END.search(buffer):
                raise Refused(400, "The line before a chunk, or one of the trailer, does not end with CR LF.")
            return False
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        if self._trailer_bytes < 0:
            self._begin_chunk(line)
        elif not line:
            self.done = True
        elif _FIELD.fullmatch(line) is None:
            raise Refused(400, "The trailer is not well formed.")
        else:
            # What a trailer says is not handed on: nobody who reads only heads would have seen it.
            self._trailer_bytes += len(line) + 2
        return True

    def _begin_chunk(self, line: bytes) -> None:
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise Refused(400, "A chunk is not well formed.")
        self._left = int(match[1], 16)
        if len(self._body) + self._left > self._max_bytes:
            self._refuse_size()
        if self._left:
            self._in_chunk = True
        else:
            self._trailer_bytes = 0

    def _refuse_size(self) -> None:
        raise Refused(413, f"The body has more than {self._max_bytes} bytes.")
