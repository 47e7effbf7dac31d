"""Which header fields an intent may bring: what the relay could not send is refused before anything is kept. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from idemactor.core.field_names import HOP_BY_HOP, TOKEN, plain_name
from idemactor.core.limits import INTENT_HEADERS_MAX
from idemactor.errors import InvalidRequest

_OURS: Final = re.compile(r"host|content-length|content-type|expect|idempotency-.*|idempotent-.*|webhook-.*")
"""What the relay writes itself, or HTTP would; ``content_type`` has a member of its own."""
_VALUE: Final = re.compile(r"(?:[!-~\x80-\U0010ffff](?:[\t -~\x80-\U0010ffff]*[!-~\x80-\U0010ffff])?)?")
"""RFC 9110, section 5.5: no control characters, no white space at the ends. What is not ASCII leaves as UTF-8, or as
Latin-1 where it is that."""
_CONTROL: Final = re.compile(r"[\x80-\x9f\ud800-\udfff]")


def is_ours(name: str) -> bool:
    """Whether a field is written by the relay or belongs to the connection, in any spelling CGI takes for the same."""
    plain = plain_name(name)
    return plain in HOP_BY_HOP or _OURS.fullmatch(plain) is not None


def check_intent_headers(content_type: str, headers: Iterable[tuple[str, str]], *, field: str = "intent") -> None:
    """Accept the content type and the fields of an intent, or of an event, as ones that can be sent.

    Raises:
        InvalidRequest: There are more than ``INTENT_HEADERS_MAX``, one is no field of HTTP, or the relay writes it
            itself; ``field`` of the error says which.
    """
    if not _is_value(content_type):
        raise InvalidRequest("no header field can carry this content type", field=f"{field}.content_type")
    pairs = tuple(headers)
    if len(pairs) > INTENT_HEADERS_MAX:
        raise InvalidRequest(f"there are more than {INTENT_HEADERS_MAX} header fields", field=f"{field}.headers")
    for number, (name, value) in enumerate(pairs):
        at = f"{field}.headers.{number}"
        if TOKEN.fullmatch(name) is None:
            raise InvalidRequest("is no name of a header field (RFC 9110, section 5.6.2)", field=at)
        if is_ours(name):
            raise InvalidRequest(f"{name} is written by the server, or belongs to the connection", field=at)
        if not _is_value(value):
            raise InvalidRequest("is no value of a header field: it has control characters, or blank ends", field=at)


def _is_value(text: str) -> bool:
    return _VALUE.fullmatch(text) is not None and _CONTROL.search(text) is None
