"""Heads of upstreams' answers (RFC 9112), looked at before h11 reads them: as strictly as requests are. Pure.

h11 mends what the standard lets a client mend: bare line feeds, folded lines, a length beside a transfer coding. But a
gateway that mends decides which of two answers an upstream gave, and here that is whether a key is committed. Somebody
whose text an upstream repeats in a field could say it for the upstream. So what two parties could read differently is
no answer at all.
"""

from __future__ import annotations

import re
from typing import Final

from idemactor.gateway.proxy.http1 import BARE_END, HEAD_END, Refused, read_fields

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([0-9]) [0-9]{3}(?: [\t\x20-\x7e\x80-\xff]*)?")
"""RFC 9112, section 4; the space before a reason that is not there is one that many leave out."""


class Unreadable(ValueError):
    """A head that is none, or can be read in two ways; it says why, for people, and quotes nothing that was sent."""


class AnswerHeads:
    """Takes heads off what a connection brings, those of 1xx and the last.

    Args:
        max_bytes: The longest head, bytes; the empty line that ends it does not count.

    Attributes:
        is_chunked: Whether the latest one said that its content comes in chunks.
    """

    def __init__(self, max_bytes: int) -> None:
        self.is_chunked = False
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._searched = 0

    def add(self, data: bytes) -> None:
        """What came next."""
        self._buffer += data

    def next(self) -> bytes | None:
        """The next head with the empty line that ends it; None: it is not whole yet.

        Raises:
            Unreadable: It is too long, or none that everybody reads alike.
        """
        end = self._buffer.find(HEAD_END, self._searched)
        # Where no end was found one may have begun in the last three bytes.
        least = max(0, len(self._buffer) - len(HEAD_END) + 1) if end < 0 else end
        if least > self._max_bytes:
            raise Unreadable(f"its header has more than {self._max_bytes} bytes")
        if end < 0:
            if BARE_END.search(self._buffer, max(0, self._searched - 1)):
                raise Unreadable("a line of its header does not end with CR LF")
            self._searched = least
            return None
        data = bytes(self._buffer[: end + len(HEAD_END)])
        del self._buffer[: end + len(HEAD_END)]
        self._searched = 0
        self.is_chunked = _is_chunked(data)
        return data

    def rest(self) -> bytes:
        """What came behind the latest head, taken out."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data


class Ending:
    """The last bytes of what came, to see how an answer in chunks ends: h11 takes bare line feeds there, too."""

    def __init__(self) -> None:
        self._before = b""
        self._piece = b""

    def add(self, piece: bytes) -> None:
        """What came next."""
        few = len(HEAD_END) - 1
        self._before = self._piece[-few:] if len(self._piece) >= few else (self._before + self._piece)[-few:]
        self._piece = piece

    def is_plain(self, behind: int) -> bool:
        """Whether the trailer ends with an empty line that everybody takes for one.

        Args:
            behind: How many bytes of the last piece came behind it.
        """
        end = len(self._piece) - behind
        return (self._before + self._piece[max(0, end - len(HEAD_END)) : end]).endswith(HEAD_END)


def _is_chunked(data: bytes) -> bool:
    """Raises: Unreadable."""
    first, *lines = data[: -len(HEAD_END)].split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        raise Unreadable("its first line is not that of an answer of HTTP/1.1")
    try:
        names = {name.lower() for name, _ in read_fields(lines)}
    except Refused:
        raise Unreadable("a field of its header is not well formed, or goes on in the next line") from None
    if "transfer-encoding" not in names:
        return False
    # RFC 9112, sections 6.1 and 6.3: nobody knows which of the two the upstream goes by; HTTP/1.0 knows no chunks.
    if "content-length" in names:
        raise Unreadable("it has a length beside a transfer coding")
    if status_line[1] == b"0":
        raise Unreadable("it has a transfer coding in HTTP/1.0")
    return True
