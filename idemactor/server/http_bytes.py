"""Answers as the bytes of an HTTP/1.1 response (RFC 9112), as h11 and hypercorn would write them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final
from wsgiref.handlers import format_date_time

from idemactor.server.http_answers import JSON_TYPE, Told
from idemactor.wire.problems import MEDIA_TYPE

_CLOSE: Final = b"connection: close\r\n"
_ENTITY: Final = {
    media_type: b"content-type: %b\r\ncontent-length: " % media_type.encode() for media_type in (JSON_TYPE, MEDIA_TYPE)
}


class DateLine:
    """The ``Date`` field (RFC 9110, section 6.6.1) and the end of a head, made once a second.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        """The field and the empty line after it."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._line = f"date: {format_date_time(second)}\r\n\r\n".encode()
        return self._line


_DATE: Final = DateLine()


def response(answer: Told, *, closing: bool) -> bytes:
    """The whole response; ``closing``: the client should send no further request on this connection."""
    close = _CLOSE if closing else b""
    return b"%b%d\r\n%b%b%b" % (_start(answer), len(answer.body), close, _DATE.line(), answer.body)


def head(answer: Told, length: int, *, closing: bool) -> bytes:
    """What comes before a body of so many bytes that is not in ``answer``; see ``response``."""
    return b"%b%d\r\n%b%b" % (_start(answer), length, _CLOSE if closing else b"", _DATE.line())


def _start(answer: Told) -> bytes:
    fields = b"".join(f"{name.lower()}: {value}\r\n".encode() for name, value in answer.headers)
    return b"HTTP/1.1 %d \r\n%b%b" % (answer.status, fields, _ENTITY[answer.media_type])
