"""The heads of the requests that are asked most, read without a framework. Pure, and strict to a fault.

What is not exactly the usual shape is not refused here: ``parse`` knows nothing of it, and the caller hands it to a
complete HTTP implementation. So nothing is accepted here that RFC 9112 lets two parties read differently: one
``Content-Length`` and no transfer coding, no folded line, no byte beyond visible ASCII, no ``Expect``, no upgrade.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from idemactor.core.limits import BODY_BYTES_MAX, OUTCOME_BODY_BYTES_MAX

HEAD_BYTES_MAX: Final = 16_384
HEAD_FIELDS_MAX: Final = 100
END: Final = b"\r\n\r\n"

_HEADS_KEPT: Final = 1_024
"""How many heads are remembered: a client on a connection that it keeps sends the same ones again and again."""
_HEAD_BYTES_KEPT: Final = 2_048
"""The largest head that is remembered: anybody may send large ones, and different ones."""

_REQUEST: Final = re.compile(
    rb"POST (/v1/(?:(batch)|([a-z][a-z0-9_-]{0,62})/(reserve|commit|release|extend|accept|dispatch))) HTTP/1\.1"
)
# White space around the value is stripped afterwards: an expression that finds its ends tries each space many times.
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\x20-\x7e\t]*)")
_LENGTH: Final = re.compile(rb"[0-9]{1,7}")
_JSON: Final = re.compile(rb"application/json[ \t]*(?:;.*)?", re.IGNORECASE)
_KEEP_ALIVE: Final = re.compile(rb"keep-alive", re.IGNORECASE)
_ELSEWHERE: Final = frozenset(
    {b"transfer-encoding", b"expect", b"upgrade", b"http2-settings", b"content-encoding", b"trailer"}
)
"""Fields that a complete implementation has to deal with."""
_OUTCOME_OPS: Final = frozenset({"commit", "accept", "dispatch"})


@dataclass(frozen=True, slots=True)
class Head:
    """A request line and its fields, as far as they matter.

    Attributes:
        path: The path.
        op: The call; ``batch`` for a batch.
        namespace: Of the path; empty for a batch.
        length: The bytes of the body.
        authorization: The values of that field, in order.
        keys: The values of ``Idempotency-Key``, in order.
    """

    path: str
    op: str
    namespace: str
    length: int
    authorization: tuple[str, ...]
    keys: tuple[bytes, ...]


class Heads:
    """Reads heads and remembers the latest."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def parse(self, head: bytes) -> Head | None:
        """What a head asks, its empty line included; None where a complete implementation has to look at it."""
        found = self._known.get(head)
        if found is None:
            found = _parse(head)
            if found is not None and len(head) <= _HEAD_BYTES_KEPT:
                self._keep(head, found)
        return found

    def _keep(self, head: bytes, found: Head) -> None:
        if len(self._known) >= _HEADS_KEPT:
            self._known.clear()
        self._known[head] = found


def _parse(head: bytes) -> Head | None:
    lines = head[: -len(END)].split(b"\r\n")
    asked = _REQUEST.fullmatch(lines[0])
    if asked is None or len(head) > HEAD_BYTES_MAX or len(lines) > HEAD_FIELDS_MAX + 1:
        return None
    fields: dict[bytes, list[bytes]] = {}
    for line in lines[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            return None
        fields.setdefault(field[1].lower(), []).append(field[2].strip(b" \t"))
    op = "batch" if asked[2] else asked[4].decode()
    length = _length(fields, op)
    if length is None or not _usual(fields):
        return None
    return Head(
        path=asked[1].decode(),
        op=op,
        namespace=asked[3].decode() if asked[3] else "",
        length=length,
        authorization=tuple(value.decode() for value in fields.get(b"authorization", ())),
        keys=tuple(fields.get(b"idempotency-key", ())),
    )


def _length(fields: dict[bytes, list[bytes]], op: str) -> int | None:
    """The length of the body; None where it is missing, doubtful or too large."""
    values = fields.get(b"content-length", ())
    if len(values) != 1 or not _LENGTH.fullmatch(values[0]):
        return None
    length = int(values[0])
    return length if 0 < length <= (OUTCOME_BODY_BYTES_MAX if op in _OUTCOME_OPS else BODY_BYTES_MAX) else None


def _usual(fields: dict[bytes, list[bytes]]) -> bool:
    types = fields.get(b"content-type", ())
    connection = fields.get(b"connection", ())
    return (
        _ELSEWHERE.isdisjoint(fields)
        and len(fields.get(b"host", ())) == 1
        and len(types) == 1
        and _JSON.fullmatch(types[0]) is not None
        and all(_KEEP_ALIVE.fullmatch(value) for value in connection)
    )
