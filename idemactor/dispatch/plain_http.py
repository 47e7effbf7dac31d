"""HTTP/1.1 as nearly every delivery has it: a POST as bytes, and an answer with a length. Pure.

What is written here is what h11 would write, and what is read is what h11 would read, without its machinery. Whatever
is not of this shape is ``None``, and left to h11: nothing is mended here, and nothing refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from idemactor.gateway.proxy.call import Outgoing
from idemactor.gateway.proxy.headers import Pairs

_HEAD: Final = re.compile(
    r"POST [!-~]+ HTTP/1\.1\r\n"
    r"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: (?:[!-~\xa0-\xff](?:[\t -~\xa0-\xff]*[!-~\xa0-\xff])?)?\r\n)+"
)
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?")
_FIELD: Final = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*"
)
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_WITHOUT_BODY: Final = (204, 304)


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """The head of an answer after which the connection goes on.

    Attributes:
        headers: Names as they were sent.
        body_at: Where the body begins, bytes.
        ends_at: Where it ends.
    """

    status: int
    headers: Pairs
    body_at: int
    ends_at: int


def request_bytes(outgoing: Outgoing) -> bytes | None:
    """A POST as it is sent; None: h11 has to say whether and how.

    Args:
        outgoing: With one ``Host``, and nothing about framing in its headers.
    """
    pairs = (*outgoing.headers, ("Content-Length", str(len(outgoing.body))))
    fields = "".join([f"{name}: {value}\r\n" for name, value in pairs])
    head = f"{outgoing.method} {outgoing.target} HTTP/1.1\r\n{fields}"
    # Each field is one line: an end of a line inside of a value would make two of it that are well formed.
    if _HEAD.fullmatch(head) is None or head.count("\r\n") != len(pairs) + 1:
        return None
    return head.encode("latin-1") + b"\r\n" + outgoing.body


def answer_start(data: bytes) -> AnswerStart | None:
    """The head of an answer to a POST, with a length, at the beginning of ``data``; None: h11 has to read it.

    That is so where the head is not whole yet, too.
    """
    end = data.find(_HEAD_END)
    if end < 0:
        return None
    first, *lines = data[:end].split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None or int(status[1]) in _WITHOUT_BODY:
        return None
    headers: list[tuple[str, str]] = []
    length: int | None = None
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            return None
        name, value = field[1], field[2]
        match name.lower():
            case b"content-length":
                if length is not None or _LENGTH.fullmatch(value) is None:
                    return None
                length = int(value)
            case b"transfer-encoding":
                return None
            case b"connection" if value.lower() != b"keep-alive":
                return None
        headers.append((name.decode("latin-1"), value.decode("latin-1")))
    if length is None:
        return None
    body_at = end + len(_HEAD_END)
    return AnswerStart(int(status[1]), tuple(headers), body_at, body_at + length)
