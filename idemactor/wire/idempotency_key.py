"""The ``Idempotency-Key`` header: an RFC 8941 string, or the key as it is (contract, sections 5 and 12)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from idemactor.core.keys import InvalidKey, check_key

__all__ = ["InvalidKey", "parse_key_header"]

# The grammar of RFC 8941 section 3. Every repetition is possessive: no input is tried twice.
_STRING: Final = rb'"(?P<string>(?:[ !#-\[\]-~]|\\["\\])*+)"'
_INTEGER_OR_DECIMAL: Final = rb"-?(?:[0-9]{1,12}\.[0-9]{1,3}|[0-9]{1,15})"
_TOKEN: Final = rb"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*+"
_BYTES: Final = rb":[A-Za-z0-9+/=]*+:"
_BARE_ITEM: Final = rb'(?:%b|"(?:[ !#-\[\]-~]|\\["\\])*+"|%b|%b|\?[01])' % (
    _INTEGER_OR_DECIMAL,
    _TOKEN,
    _BYTES,
)
_PARAMETER: Final = rb"; *+[a-z*][a-z0-9_.*-]*+(?:=%b)?+" % _BARE_ITEM

_ITEM: Final = re.compile(rb"%b(?:%b)*+" % (_STRING, _PARAMETER))
_BARE: Final = re.compile(rb"[!#-+\--:<-~]++")
"""Visible ASCII without the quote, the comma and the semicolon."""
_ESCAPE: Final = re.compile(r'\\(["\\])')


def parse_key_header(values: Sequence[bytes]) -> str:
    """The key that the header names. Parameters of an RFC 8941 item are checked and ignored.

    Args:
        values: Every value of the field, in order: a header sent twice is refused, never the first one taken.

    Raises:
        InvalidKey: Not exactly one value, blank, malformed, or a key that no record can have.
    """
    if len(values) != 1:
        raise InvalidKey("the Idempotency-Key header is sent exactly once")
    value = values[0].strip(b" \t")
    if not value:
        raise InvalidKey("the Idempotency-Key header is blank")
    key = _quoted(value) if value.startswith(b'"') else _bare(value)
    check_key(key)
    return key


def _quoted(value: bytes) -> str:
    match = _ITEM.fullmatch(value)
    if match is None:
        raise InvalidKey("the Idempotency-Key header begins with a quote but is no RFC 8941 string")
    text = match["string"].decode("ascii")
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


def _bare(value: bytes) -> str:
    if _BARE.fullmatch(value) is None:
        raise InvalidKey("a bare Idempotency-Key is visible ASCII without quotes, commas and semicolons")
    return value.decode("ascii")
