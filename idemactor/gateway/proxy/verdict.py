"""What an upstream's answer says about the effect: the verdict rule of routes and destinations. Pure.

========================================================  ============================================
the answer                                                verdict
========================================================  ============================================
2xx, where the route has no ``success`` rule              SUCCESS: committed with the outcome
2xx whose JSON says what ``success`` asks for             SUCCESS
2xx whose JSON says the opposite                          FAILURE: released (or committed and replayed)
2xx whose JSON cannot be read, or says something else     IN_DOUBT
a status of ``definite_failure``                          FAILURE
a status of ``not_executed``                              NOT_EXECUTED: released, for the client to retry
anything else: 1xx, 3xx, 409, other 4xx, 5xx              IN_DOUBT: never released
no answer after the request was sent                      IN_DOUBT (not decided here)
========================================================  ============================================
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterable
from typing import Final, Protocol

from idemactor.core.fingerprint import InvalidPayload, Number, canonical
from idemactor.core.limits import OUTCOME_BYTES_MAX
from idemactor.core.pointers import ABSENT, pick
from idemactor.gateway.proxy.routes import SuccessRule
from idemactor.wire.strict_json import InvalidJSON, parse

READ_BYTES_MAX: Final = OUTCOME_BYTES_MAX
"""The largest answer that a ``success`` rule looks into, also once it is unpacked."""

READABLE_CODINGS: Final = ("gzip", "x-gzip", "deflate", "identity")
"""The content codings that a ``success`` rule reads through."""


class Verdict(enum.Enum):
    """What became of the effect."""

    SUCCESS = "success"
    FAILURE = "failure"
    NOT_EXECUTED = "not_executed"
    IN_DOUBT = "in_doubt"


class VerdictRules(Protocol):
    """What a route, or a destination of the relay, says about answers; see ``Route``."""

    @property
    def success(self) -> SuccessRule | None:
        """What a 2xx has to say beside; None: nothing."""

    @property
    def definite_failure(self) -> frozenset[int]:
        """Statuses that say that nothing was done."""

    @property
    def not_executed(self) -> frozenset[int]:
        """The same, to be tried again."""


class _Unreadable(Exception):
    """The body does not say anything that can be understood."""


def reads_body(rules: VerdictRules, status: int) -> bool:
    """Whether the verdict on this status needs the body."""
    return rules.success is not None and 200 <= status < 300


def verdict_of(rules: VerdictRules, status: int, headers: Iterable[tuple[str, str]], body: bytes | None) -> Verdict:
    """The verdict on an answer that arrived whole.

    Args:
        status: 200 or more.
        headers: Of the answer, for its content coding.
        body: None: it was too large to be looked into.
    """
    if status in rules.not_executed:
        return Verdict.NOT_EXECUTED
    if status in rules.definite_failure:
        return Verdict.FAILURE
    if not 200 <= status < 300:
        return Verdict.IN_DOUBT
    if rules.success is None:
        return Verdict.SUCCESS
    try:
        return _said(rules.success, _decoded(headers, body))
    except (_Unreadable, InvalidJSON, InvalidPayload):
        return Verdict.IN_DOUBT


def _said(rule: SuccessRule, body: bytes) -> Verdict:
    found = pick(parse(body), rule.tokens, {})
    if found is ABSENT:
        return Verdict.IN_DOUBT
    if means_same(found, rule.equals):
        return Verdict.SUCCESS
    if isinstance(rule.equals, bool) and found is (not rule.equals):
        return Verdict.FAILURE
    return Verdict.FAILURE if any(means_same(found, value) for value in rule.fails) else Verdict.IN_DOUBT


def means_same(found: object, wanted: object) -> bool:
    """Whether two values of JSON are one by meaning: 1 and 1.0 are, but true is no 1."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return canonical(_number(found)) == canonical(_number(wanted))


def _number(value: object) -> object:
    return Number(repr(value)) if isinstance(value, float) else value


def _decoded(headers: Iterable[tuple[str, str]], body: bytes | None) -> bytes:
    if body is None:
        raise _Unreadable
    codings = [
        part.strip().lower()
        for name, value in headers
        if name.lower() == "content-encoding"
        for part in value.split(",")
    ]
    # The last one named was applied last (RFC 9110, section 8.4).
    for coding in reversed(codings):
        if coding not in ("", "identity"):
            body = _unpacked(coding, body)
    return body


def _unpacked(coding: str, body: bytes) -> bytes:
    if coding not in READABLE_CODINGS:
        raise _Unreadable
    # 32: zlib or gzip, whichever the header says. What is called deflate is zlib (RFC 9110, section 8.4.1.2).
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        data = unpacker.decompress(body, READ_BYTES_MAX)
    except zlib.error:
        raise _Unreadable from None
    if not unpacker.eof or unpacker.unused_data:
        # Cut short, a bomb, or something behind it.
        raise _Unreadable
    return data
