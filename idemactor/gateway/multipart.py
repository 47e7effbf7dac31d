"""Multipart bodies as their parts: two that differ in their boundary alone are one (contract, 9; RFC 2046, 5.1)."""

from __future__ import annotations

import re
from typing import Final

PARTS_MAX: Final = 1_000
"""A body of more parts is compared byte by byte."""

_BOUNDARY: Final = re.compile(
    r"multipart/[^;]+;(?:.*;)?[ \t]*boundary=(?:\"([^\"]{1,70})\"|([^\s;,\"]{1,70}))[ \t]*(?:;.*)?", re.IGNORECASE
)
_PADDING: Final = b" \t"

Part = list[object]
"""The header fields of a part, [name in lower case, value] each, and its bytes."""


def parts_of(content_type: str, body: bytes) -> list[Part] | None:
    """The parts of a multipart body; None where it is none, or not well formed: its bytes are what counts then."""
    match = _BOUNDARY.fullmatch(content_type.strip())
    if match is None:
        return None
    delimiter = b"\r\n--" + (match[1] or match[2]).encode("utf-8", "replace")
    # The first delimiter may be the first line of the body: with a line end before it, all look the same.
    preamble, *pieces = (b"\r\n" + body).split(delimiter, PARTS_MAX + 2)
    if len(pieces) < 2 or len(pieces) > PARTS_MAX + 1 or not pieces[-1].startswith(b"--"):
        return None
    del preamble
    parts = [_part(piece) for piece in pieces[:-1]]
    return None if None in parts else [part for part in parts if part is not None]


def _part(piece: bytes) -> Part | None:
    """What stands between two delimiters; None where it is no part."""
    padding, line_end, rest = piece.partition(b"\r\n")
    if padding.strip(_PADDING) or not line_end:
        return None
    # A part without header fields begins with the empty line itself.
    head, blank, content = (b"\r\n" + rest).partition(b"\r\n\r\n")
    if not blank:
        return None
    fields: list[object] = []
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if not colon:
            return None
        fields.append([name.strip(_PADDING).lower(), value.strip(_PADDING)])
    return [fields, content]
