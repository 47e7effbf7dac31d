"""Header fields on their way through the reverse proxy: which go on, which are ours, which are replayed. Pure.

Fields are pairs of Latin-1 text, names as they were sent; every comparison is in lower case, and what is
dropped from a request is dropped in every spelling that CGI takes for the same (``plain_name``).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from idemactor.core.field_names import HOP_BY_HOP, TOKEN, plain_name
from idemactor.gateway.proxy.verdict import READABLE_CODINGS
from idemactor.wire.idempotency_key import InvalidKey, parse_key_header

Pairs: TypeAlias = tuple[tuple[str, str], ...]

NEVER_REPLAYED: Final = HOP_BY_HOP | {
    *("set-cookie", "set-cookie2", "date", "age", "content-length", "server-timing"),
    *("www-authenticate", "authentication-info", "authorization", "idempotent-replayed"),
}
"""What no configuration can have replayed: it belongs to one answer, one connection or one caller's credentials."""

REPLAYED: Final = frozenset(
    {
        *("content-type", "content-encoding", "content-language", "content-location", "content-disposition"),
        *("content-digest", "repr-digest", "content-md5", "content-range", "location", "link", "etag"),
        *("last-modified", "cache-control", "expires", "vary", "allow", "retry-after"),
    }
)
"""What is stored with an outcome: what describes the answer itself. A route can name more (``replay_headers``)."""

REPLAYED_MARK: Final = ("Idempotent-Replayed", "true")
TAKEOVER_MARK: Final = ("Idempotency-Takeover", "true")
"""Tells the upstream that an earlier attempt may already have had its effect."""
ATTEMPT_HEADER: Final = "Idempotency-Attempt"
UNPROTECTED_MARK: Final = ("Idempotency-Unprotected", "true")
"""Tells both sides that deduplication was unavailable and the request went on all the same."""

KEY_HEADER: Final = "Idempotency-Key"
_DECIDED: Final = re.compile(r"idempotency-(?!key$).*|idempotent-.*|x-idemactor-.*")
"""Names that say what was decided; nobody but us may say it."""
_OURS_IN_ANSWERS: Final = re.compile(r"idempotent-replayed|idempotency-unprotected|x-idemactor-.*")
"""What a client hears from us alone, or could not tell our replay from another's."""
_FORWARDED: Final = ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host")
_NOT_TRUSTED: Final = re.compile(r"x-forwarded-.*|forwarded|x-real-ip|x-original-url|x-rewrite-url")
"""What only a proxy may say; the last two would have an upstream serve another path than the route was found by."""

_FOR_THE_UPSTREAM: Final = re.compile(rf"host|idempotency-key|{_NOT_TRUSTED.pattern}")
"""What no ``Connection`` field takes out, since it is for whoever answers in the end (RFC 9110, section 7.6.1):
a client would choose by it which host it reaches, and whether a trusted proxy's word about it gets there."""

_BREAKS_OUT: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
"""What no value may hold (RFC 9110, section 5.5): with an end of a line in it, it would be a field of its own."""
_BARE_KEY: Final = re.compile(r"[!#-+\--:<-~]+")
_QUOTABLE: Final = re.compile(r"[ -~]+")


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection.

    Attributes:
        host: Its address; empty on a Unix socket.
        scheme: ``http`` or ``https``, as the connection was made.
        trusted: Whether what it says about those before it is believed.
    """

    host: str
    scheme: str
    trusted: bool = False


class TrustedPeers:
    """The networks whose ``X-Forwarded-*`` are believed.

    Args:
        networks: Addresses or networks; ``unix`` is whoever comes over a Unix socket.

    Raises:
        ValueError: One is none.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        named = list(networks)
        self._unix = "unix" in named
        self._networks = [ipaddress.ip_network(text) for text in named if text != "unix"]

    def __contains__(self, host: str) -> bool:
        if not host:
            return self._unix
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)


def end_to_end(headers: Iterable[tuple[str, str]]) -> Pairs:
    """Without what belongs to the connection: the fields known to, and those that ``Connection`` may name."""
    pairs = tuple(headers)
    named = [part.strip() for name, value in pairs if name.lower() == "connection" for part in value.split(",")]
    dropped = HOP_BY_HOP.union(option for option in map(plain_name, named) if not _FOR_THE_UPSTREAM.fullmatch(option))
    return tuple(pair for pair in pairs if plain_name(pair[0]) not in dropped)


def without_decisions(headers: Iterable[tuple[str, str]], *own: str) -> Pairs:
    """Without what only we may say; ``own`` are further such names."""
    names = set(map(plain_name, own))
    kept = []
    for name, value in headers:
        plain = plain_name(name)
        spoofed_key = plain == "idempotency-key" and name.lower() != plain
        if _DECIDED.fullmatch(plain) is None and plain not in names and not spoofed_key:
            kept.append((name, value))
    return tuple(kept)


def forwarded(headers: Iterable[tuple[str, str]], peer: Peer) -> Pairs:
    """With ``X-Forwarded-For``, ``-Proto`` and ``-Host`` that are true.

    What an untrusted peer says about where a request comes from is dropped; to a trusted one's words its own address
    is added, and its ``-Proto`` and ``-Host`` stay. A name in another spelling is nobody's word: a proxy that writes
    the right one may have let its client's pass.
    """
    pairs = tuple(headers)
    known = {name.lower(): value for name, value in pairs}
    chain = [value for name, value in pairs if name.lower() == "x-forwarded-for"] if peer.trusted else []
    told = {
        "X-Forwarded-For": ", ".join([*chain, peer.host or "unknown"]),
        "X-Forwarded-Proto": peer.scheme,
        "X-Forwarded-Host": known.get("host", ""),
    }
    if peer.trusted:
        told |= {name: known[name.lower()] for name in told if name != "X-Forwarded-For" and name.lower() in known}
    kept = tuple(pair for pair in pairs if not _speaks_of_others(pair[0], peer))
    return (*kept, *((name, value) for name, value in told.items() if value))


def _speaks_of_others(name: str, peer: Peer) -> bool:
    plain = plain_name(name)
    if peer.trusted and name.lower() == plain:
        return plain in _FORWARDED
    return _NOT_TRUSTED.fullmatch(plain) is not None


def with_key(headers: Iterable[tuple[str, str]], key: str, otherwise: str) -> Pairs:
    """With the ``Idempotency-Key`` of the operation; the client's own stays as it wrote it, where it is that one.

    Args:
        key: As it was resolved.
        otherwise: What to send where no header can carry ``key``, which may be any Unicode text.
    """
    pairs = tuple(headers)
    values = [value for name, value in pairs if name.lower() == "idempotency-key"]
    if len(values) == 1 and _names(values[0], key):
        return pairs
    return (*without(pairs, "idempotency-key"), (KEY_HEADER, key_value(key, otherwise)))


def _names(value: str, key: str) -> bool:
    try:
        return parse_key_header([value.encode("latin-1")]) == key
    except InvalidKey:
        return False


def key_value(key: str, otherwise: str) -> str:
    """A key as the header has it: bare, or an RFC 8941 string, or ``otherwise`` where it is neither."""
    if _BARE_KEY.fullmatch(key):
        return key
    if _QUOTABLE.fullmatch(key):
        return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return otherwise


def readable(headers: Iterable[tuple[str, str]]) -> Pairs:
    """With ``Accept-Encoding`` cut down to what a rule about the answer's body can read."""
    kept = []
    for name, value in headers:
        if name.lower() == "accept-encoding":
            parts = [part.strip() for part in value.split(",")]
            value = ", ".join(p for p in parts if p.partition(";")[0].strip().lower() in READABLE_CODINGS) or "identity"
        kept.append((name, value))
    return tuple(kept)


def answered(headers: Iterable[tuple[str, str]]) -> Pairs:
    """What goes on of an upstream's answer: without what belongs to the connection, or only we may say."""
    return tuple(pair for pair in end_to_end(headers) if _OURS_IN_ANSWERS.fullmatch(plain_name(pair[0])) is None)


def replayable(headers: Iterable[tuple[str, str]], more: frozenset[str]) -> Pairs:
    """What is stored of an answer's fields, in order."""
    allowed = (REPLAYED | more) - NEVER_REPLAYED
    return tuple(pair for pair in answered(headers) if pair[0].lower() in allowed)


def sendable(headers: Iterable[tuple[str, str]]) -> Pairs:
    """What can leave of stored fields, which may have come over another door, and say there what they like.

    No framing, nothing malformed, and nothing that only we may say, in any spelling.
    """
    formed = [(name, value) for name, value in headers if TOKEN.fullmatch(name) and not _BREAKS_OUT.search(value)]
    return tuple(pair for pair in answered(formed) if plain_name(pair[0]) not in NEVER_REPLAYED)


def without(headers: Iterable[tuple[str, str]], *names: str) -> Pairs:
    """Without the fields of these names, in any spelling that CGI takes for the same."""
    dropped = set(map(plain_name, names))
    return tuple(pair for pair in headers if plain_name(pair[0]) not in dropped)


def encoded(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """The bytes they came as; what came as other text than that of a connection leaves as UTF-8."""
    return [(_bytes(name), _bytes(value)) for name, value in headers]


def _bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
