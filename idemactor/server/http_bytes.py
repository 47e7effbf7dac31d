"""Answers as the bytes of an HTTP/1.1 response (RFC 9112), as h11 and hypercorn would write them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Final
from wsgiref.handlers import format_date_time

from idemactor.server.http_answers import Told

_CLOSE: Final = b"connection: close\r\n"


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
    fields = b"".join(f"{name.lower()}: {value}\r\n".encode() for name, value in answer.headers)
    if closing:
        fields += _CLOSE
    head = b"%b%d\r\n%b%b" % (_start(answer.status, answer.media_type), len(answer.body), fields, _DATE.line())
    return head + answer.body


@functools.cache
def _start(status: int, media_type: str) -> bytes:
    """What all answers of a kind begin with; there are few kinds."""
    return f"HTTP/1.1 {status} \r\ncontent-type: {media_type}\r\ncontent-length: ".encode()
