"""Which route of the reverse proxy a request takes, and what a route says (configuration ``[[gateway.routes]]``). Pure.

The longest prefix that ends on a segment boundary wins. An upstream may read a path in another way than it was written
(``/a/../orders``, ``/%6frders``, ``//orders``, ``/orders.``), and a request must not go around its route by that: where
the two readings lead to different routes, there is no answer that is right, and the request is refused. So is, whatever
it leads to, what is written for no other reader: control characters, dots and slashes in overlong or doubled escapes.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from idemactor.core.pointers import parse_pointer

TIMEOUT_MS_DEFAULT: Final = 30_000
"""How long an upstream may take for one request, to the end of its answer."""
CONNECT_MS_DEFAULT: Final = 5_000
"""How long connecting to an upstream may take, the wait for a free connection included."""
OPERATION_HEADER: Final = "Idempotency-Operation-Id"

DEFINITE_FAILURE: Final = frozenset({400, 401, 403, 404, 422})
"""Answers by which an upstream says that nothing was done, unless the route says otherwise."""
NOT_EXECUTED: Final = frozenset({429})
"""The same, and the client is to try again."""
METHODS: Final = frozenset({"POST", "PATCH"})
"""The methods that are protected unless the route says otherwise: those that HTTP does not call idempotent."""


class InvalidUpstream(ValueError):
    """A text that names no upstream; it says why."""


class AmbiguousPath(ValueError):
    """A path that leads to another route where an upstream normalises it, or that no two read alike; it says which."""


class OrderIdForm(enum.StrEnum):
    """How the operation id is written for the upstream (``core/order_ids.py``)."""

    UUID = "uuid"
    BASE62 = "base62"
    BASE36 = "base36"
    BINANCE = "binance"
    BYBIT = "bybit"


class RouteAuth(enum.StrEnum):
    """Who may use a route."""

    BEARER = "bearer"
    """Whoever has a token of ``[auth.tokens]`` for the route's namespace; it says whose keys these are."""
    OPEN = "open"
    """Whoever reaches it; the keys are those of the route's ``tenant``."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an upstream is.

    Attributes:
        scheme: ``http`` or ``https``.
        host: A name or an address without brackets; empty for a Unix socket.
        port: Of TCP, 0 for a Unix socket.
        unix: The path of a Unix socket, empty for TCP.
    """

    scheme: str
    host: str
    port: int
    unix: str = ""

    @property
    def authority(self) -> str:
        """As the ``Host`` field has it."""
        if self.unix:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


_PORTS: Final = {"http": 80, "https": 443}


def parse_upstream(text: str) -> Origin:
    """``http://host:port``, ``https://host`` or ``unix:/path``.

    Raises:
        InvalidUpstream: It is none, or says more than where: the path of a request is passed on whole.
    """
    if text.startswith("unix:"):
        if not text.startswith("unix:/") or not text.isprintable() or text != text.strip():
            raise InvalidUpstream("names a Unix socket by its absolute path, unix:/path, without spaces around it")
        return Origin("http", "", 0, text.removeprefix("unix:"))
    # What urlsplit would mend or let through: nobody meant that, and it would stand in every Host.
    if _VISIBLE.fullmatch(text) is None:
        raise InvalidUpstream("has white space, or characters beyond ASCII: write a name in its xn-- form")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidUpstream("has no valid host and port") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidUpstream('is no upstream: write "http://host:port", "https://host" or "unix:/path"')
    if port == 0 or parts.netloc.endswith(":") or not _is_host(parts.hostname):
        raise InvalidUpstream("has no valid host and port")
    if parts.username is not None:
        raise InvalidUpstream("has a user or a password in it, which would stand in listings: use a header field")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidUpstream("has more than a host and a port: the path of a request is passed on whole")
    return Origin(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port)


_VISIBLE: Final = re.compile(r"[!-~]*")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def _is_host(text: str) -> bool:
    """A name, or an IPv6 address (which urlsplit found between brackets)."""
    if ":" not in text:
        return _NAME.fullmatch(text) is not None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SuccessRule:
    """What a 2xx has to say in its JSON body to be a success.

    Attributes:
        pointer: Where it says so (JSON Pointer, RFC 6901).
        equals: What it has to say.
        fails: What says as surely that nothing was done. Where ``equals`` is true or false, the other one does.
    """

    pointer: str
    equals: object
    fails: tuple[object, ...] = ()
    tokens: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", parse_pointer(self.pointer))


@dataclass(frozen=True, slots=True)
class Route:
    """One route. Times in milliseconds.

    Attributes:
        prefix: The path it begins with, on a segment boundary.
        upstream: Where its requests go.
        namespace: Whose policy its keys have.
        source: The name of the source that finds a request's key.
        methods: Those that are protected; others pass.
        require_key: Whether a request without a key is refused; otherwise it passes unprotected.
        wait_ms: How long a duplicate waits for the first to finish.
        timeout_ms: For the upstream, from the connection to the end of its answer.
        first_byte_ms: To the head of its answer.
        connect_ms: To the connection.
        success: What a 2xx has to say beside; None: nothing.
        definite_failure: Statuses that say that nothing was done.
        not_executed: The same, for the client to try again.
        store_failures: Whether a definite failure is committed and replayed instead of releasing the key.
        operation_header: The field that carries the operation id to the upstream.
        operation_form: How it is written there.
        operation_prefix: What comes before it there.
        replay_headers: Further fields, in lower case, that are stored and replayed.
        auth: Who may use it.
        auth_header: The field, in lower case, that a token of ours comes in; it never reaches the upstream.
        tenant: Whose keys these are where ``auth`` is open.
        preserve_host: Whether the upstream sees the client's ``Host``, or its own.
    """

    prefix: str
    upstream: Origin
    namespace: str
    source: str = "http"
    methods: frozenset[str] = METHODS
    require_key: bool = True
    wait_ms: int = 0
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    first_byte_ms: int = TIMEOUT_MS_DEFAULT
    connect_ms: int = CONNECT_MS_DEFAULT
    success: SuccessRule | None = None
    definite_failure: frozenset[int] = DEFINITE_FAILURE
    not_executed: frozenset[int] = NOT_EXECUTED
    store_failures: bool = False
    operation_header: str = OPERATION_HEADER
    operation_form: OrderIdForm = OrderIdForm.UUID
    operation_prefix: str = ""
    replay_headers: frozenset[str] = frozenset()
    auth: RouteAuth = RouteAuth.OPEN
    auth_header: str = "authorization"
    tenant: str = "default"
    preserve_host: bool = True


class Routes:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_length = sorted(routes, key=lambda route: len(route.prefix.rstrip("/")), reverse=True)

    def __iter__(self) -> Iterator[Route]:
        return iter(self._by_length)

    def find(self, target: str) -> Route | None:
        """The route of a request target; None: there is none.

        Args:
            target: Path and query as they were sent.

        Raises:
            AmbiguousPath: Read as an upstream may read it, the path belongs to another route; or its escapes are none
                that a path needs.
        """
        path = target.partition("?")[0]
        found = self._match(path)
        if _PLAIN.fullmatch(path) is None and any(self._match(reading) is not found for reading in _readings(path)):
            raise AmbiguousPath("the path leads elsewhere once it is normalised")
        return found

    def _match(self, path: str) -> Route | None:
        for route in self._by_length:
            prefix = route.prefix.rstrip("/")
            if path == prefix or path.startswith(f"{prefix}/"):
                return route
        return None


_PLAIN: Final = re.compile(r"(?:/[A-Za-z0-9_~-](?:[A-Za-z0-9_.~-]*[A-Za-z0-9_~-])?)+/?|/")
"""A path that nobody reads in two ways: no escapes, no empty segments, none that begins or ends with a dot."""
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_OVERLONG: Final = re.compile(r"[\xc0\xc1]|\xe0[\x80-\x9f]|\xf0[\x80-\x8f]|\xf8[\x80-\x87]|\xfc[\x80-\x83]")
"""Bytes that begin a longer form of a character than UTF-8 has for it (RFC 3629, section 10)."""
_TWICE: Final = re.compile(r"%(?:2[EeFf5]|5[Cc]|[01][0-9A-Fa-f]|7[Ff])")
"""What decoding once may not leave: an escaped dot, slash, backslash, percent sign or control character."""
_CLIMBING: Final = re.compile(
    r"/(?:(?:\.\.?|[A-Za-z0-9_~-](?:[A-Za-z0-9_.~-]*[A-Za-z0-9_~-])?)/)*(?:\.\.?|[A-Za-z0-9_.~-]+)?"
)
"""A path of plain segments and dots alone: whoever removes them comes to the same."""
_AFTER_NAME: Final = re.compile(r"[;?#]")
_UP: Final = re.compile(r" *\.[ .]*\. *")


def _readings(path: str) -> tuple[str, str]:
    """``path`` as it is read by whoever decodes it once, and by whoever does so twice.

    Raises:
        AmbiguousPath: An escape in it is none, or nothing that belongs into a path; or it goes up and has more in it
            that is read in two ways, so that there are as many paths as readers.
    """
    if _NO_ESCAPE.search(path):
        raise AmbiguousPath("the path has a percent sign that begins no escape")
    once = unquote(path, encoding="latin-1")
    if _CONTROL.search(once) or _OVERLONG.search(once):
        raise AmbiguousPath("the path has an escaped control character, or an overlong one")
    if _TWICE.search(once):
        raise AmbiguousPath("the path is escaped twice where that would change its segments")
    readings = _names(once), _names(unquote(once, encoding="latin-1"))
    if any(".." in names for names in readings) and _CLIMBING.fullmatch(path) is None:
        raise AmbiguousPath("the path goes up, and not everybody reads it alike")
    return _normalised(readings[0]), _normalised(readings[1])


def _names(path: str) -> list[str]:
    """The segments of a decoded path as the most eager of upstreams reads them: no parameters, none that are empty.

    File systems there are that drop spaces and dots at the end of a name.
    """
    names = []
    for segment in path.replace("\\", "/").split("/"):
        name = _AFTER_NAME.split(segment, maxsplit=1)[0]
        names.append(".." if _UP.fullmatch(name) else name.strip(" ").rstrip(" ."))
    return [name for name in names if name]


def _normalised(names: list[str]) -> str:
    segments: list[str] = []
    for name in names:
        if name == "..":
            del segments[-1:]
        else:
            segments.append(name)
    return "/" + "/".join(segments)
