"""``[gateway]`` and its routes: read setting by setting, and checked against what else is configured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from idemactor.config import kinds
from idemactor.config.kinds import Kind, show
from idemactor.config.model import DoorSection, GatewaySection
from idemactor.config.section import Section
from idemactor.core import limits
from idemactor.core.field_names import HOP_BY_HOP, TOKEN, plain_name
from idemactor.core.fingerprint import parse_pointer
from idemactor.core.policy import Policy
from idemactor.gateway.proxy.attempt import order_id
from idemactor.gateway.proxy.headers import NEVER_REPLAYED, TrustedPeers
from idemactor.gateway.proxy.limits import BODY_BYTES_MAX, CONCURRENT_MAX, HEADER_BYTES_MAX, ProxyLimits
from idemactor.gateway.proxy.routes import OrderIdForm, Origin, Route, RouteAuth, SuccessRule, parse_upstream
from idemactor.gateway.proxy.verdict import means_same
from idemactor.gateway.source import Source

TIMEOUT_MS_MAX: Final = limits.DAY_MS
UPSTREAM_IDLE_MS_MAX: Final = 3_600_000

_DEFAULT: Final = Route("/", Origin("http", "", 0), "default")
_METHOD: Final = re.compile(r"[A-Z]+")
_PREFIX: Final = re.compile(r"/|(?:/[A-Za-z0-9_~-](?:[A-Za-z0-9_.~-]*[A-Za-z0-9_~-])?)+/?")
_TAKEN: Final = re.compile(
    r"host|expect|cookies?|set-cookie|date|via|forwarded|range|authorization|origin|referer|user-agent|x-real-ip"
    r"|content-.*|accept.*|if-.*|x-forwarded-.*|proxy-.*|sec-.*|access-control-.*"
    r"|idempotency-(key|attempt|takeover|unprotected)|idempotent-.*"
)
"""Fields that HTTP, the client or we need for something else: what they say must not be replaced, or taken out.
Underscores count as hyphens: behind CGI they are one."""
_SAMPLE_ID: Final = "0190f8f0-0000-7000-8000-000000000000"


def build_gateway(section: Section, door: DoorSection, *, has_tokens: bool) -> GatewaySection:
    """The section; ``door`` is what it shares with the other doors."""
    default = ProxyLimits()
    gateway = GatewaySection(
        door=door,
        routes=tuple(_route(one, has_tokens) for one in section.listed_sections("routes")),
        trusted=section.read("trusted", kinds.texts('addresses, networks, or "unix"', _check_network), ()),
        limits=ProxyLimits(
            header_bytes_max=section.read(
                "header_bytes_max", kinds.integer(1_024, HEADER_BYTES_MAX), default.header_bytes_max
            ),
            body_bytes_max=section.read("body_bytes_max", kinds.integer(0, BODY_BYTES_MAX), default.body_bytes_max),
            concurrent_max=section.read("concurrent_max", kinds.integer(1, CONCURRENT_MAX), default.concurrent_max),
            upstream_idle_ms=section.read(
                "upstream_idle_ms", kinds.integer(1, UPSTREAM_IDLE_MS_MAX), default.upstream_idle_ms
            ),
        ),
    )
    if door.bind and not section.has("routes"):
        section.report("has no routes: add [[gateway.routes]]", "bind")
    if gateway.routes and not door.bind and not section.is_reported("bind"):
        section.report("has routes and listens nowhere: set gateway.bind")
    section.close()
    return gateway


def _route(section: Section, has_tokens: bool) -> Route:
    default = _DEFAULT
    time = kinds.integer(1, TIMEOUT_MS_MAX)
    timeout_ms = section.read("timeout_ms", time, default.timeout_ms)
    has_tenant = section.has("tenant")
    auth = RouteAuth.BEARER if has_tokens and not has_tenant else RouteAuth.OPEN
    statuses = Kind("a list of statuses from 300 to 599", read_statuses)
    methods = kinds.texts('methods in capitals, "POST"', _check_method)
    protected: tuple[str, ...] = section.read("methods", methods, tuple(default.methods))
    failing: tuple[int, ...] = section.read("definite_failure", statuses, tuple(default.definite_failure))
    not_executed: tuple[int, ...] = section.read("not_executed", statuses, tuple(default.not_executed))
    replayed = kinds.texts("names of header fields", _check_replayed)
    route = Route(
        prefix=section.require("prefix", Kind('a path like "/orders"', _prefix), default.prefix),
        upstream=section.require("upstream", Kind("an upstream", _upstream), default.upstream),
        namespace=section.require("namespace", kinds.name(), default.namespace),
        source=section.read("source", Kind("the name of a source", read_text), default.source),
        methods=frozenset(protected),
        require_key=section.read("require_key", kinds.boolean(), default.require_key),
        wait_ms=section.read("wait_ms", kinds.integer(0, limits.WAIT_MS_MAX), default.wait_ms),
        timeout_ms=timeout_ms,
        first_byte_ms=section.read("first_byte_ms", time, timeout_ms),
        connect_ms=section.read("connect_ms", time, min(default.connect_ms, timeout_ms)),
        success=read_success(section),
        definite_failure=frozenset(failing),
        not_executed=frozenset(not_executed),
        store_failures=section.read("store_failures", kinds.boolean(), default.store_failures),
        operation_header=section.read("operation_header", _free_field(), default.operation_header),
        operation_form=section.read("operation_form", kinds.choice(OrderIdForm), default.operation_form),
        operation_prefix=section.read("operation_prefix", Kind("text", read_text), default.operation_prefix),
        replay_headers=frozenset(name.lower() for name in section.read("replay_headers", replayed, ())),
        auth=section.read("auth", kinds.choice(RouteAuth), auth),
        auth_header=section.read("auth_header", _free_field("authorization"), default.auth_header).lower(),
        tenant=section.read("tenant", kinds.name(), default.tenant),
        preserve_host=section.read("preserve_host", kinds.boolean(), default.preserve_host),
    )
    if route.auth is RouteAuth.BEARER and not has_tokens:
        section.report("asks for tokens, and there are none: everybody would pass; add [auth.tokens.NAME]", "auth")
    _check_route(section, route)
    section.close()
    return route


def read_success(section: Section) -> SuccessRule | None:
    """The table ``success`` of a route or a destination; None where it is left out."""
    rule = section.section("success")
    if not section.has_table("success"):
        return None
    scalar = Kind("true, false, a number or text", _scalar)
    pointer = rule.require("pointer", Kind("a JSON Pointer (RFC 6901)", _pointer), "")
    equals = rule.require("equals", scalar, True)
    fails = rule.read("fails", Kind("a list of values", _scalars), ())
    if any(means_same(equals, one) for one in fails):
        rule.report("contains what equals says: an answer cannot be both", "fails")
    rule.close()
    return SuccessRule(pointer, equals, fails)


def _check_route(section: Section, route: Route) -> None:
    """What settings of one route say to each other."""
    if not route.methods:
        section.report("is empty: nothing would be protected", "methods")
    if route.operation_header.lower() == route.auth_header:
        section.report("is auth_header, too", "operation_header")
    twice = sorted(route.definite_failure & route.not_executed)
    if twice:
        blamed = "not_executed" if section.has("not_executed") else "definite_failure"
        section.report(f"{twice[0]} is in definite_failure and in not_executed", blamed)
    if route.auth is RouteAuth.BEARER and section.has("tenant"):
        section.report('says whose keys these are, and so does the token that auth = "bearer" asks for', "tenant")
    if route.first_byte_ms > route.timeout_ms:
        section.report(f"is more than timeout_ms {route.timeout_ms}", "first_byte_ms")
    try:
        order_id(route, _SAMPLE_ID)
        _check_ascii(route.operation_prefix)
    except ValueError as error:
        section.report(f"does not fit operation_form: {error}", "operation_prefix")


def check_routes(
    gateway: GatewaySection, namespaces: Mapping[str, Policy], sources: Mapping[str, Source]
) -> Iterator[tuple[str, str]]:
    """Settings and what is wrong with them, where routes need what is configured elsewhere."""
    prefixes: dict[str, int] = {}
    for number, route in enumerate(gateway.routes):
        at = f"gateway.routes.{number}"
        plain = route.prefix.rstrip("/")
        if plain in prefixes:
            yield f"{at}.prefix", f"{show(route.prefix)} is that of gateway.routes.{prefixes[plain]}, too"
        prefixes.setdefault(plain, number)
        source, policy = sources.get(route.source), namespaces.get(route.namespace)
        if source is None:
            yield f"{at}.source", f"there is no source {show(route.source)}; there are {', '.join(sorted(sources))}"
        if policy is None:
            known = ", ".join(sorted(namespaces))
            yield f"{at}.namespace", f"there is no namespace {show(route.namespace)}; there are {known}"
            continue
        if route.connect_ms + route.timeout_ms > policy.lease_total_max_ms:
            most = f"the lease_total_max_ms {policy.lease_total_max_ms} of its namespace"
            both = f"{route.timeout_ms} and connect_ms {route.connect_ms} together are"
            yield f"{at}.timeout_ms", f"{both} more than {most}: no lease lasts that long"


def is_guarded(route: Route, sources: Mapping[str, Source], *, has_tokens: bool) -> bool:
    """Whether nobody uses the route who has not shown who it is."""
    source = sources.get(route.source)
    asks = route.auth is RouteAuth.BEARER and has_tokens
    return asks or (source is not None and source.verify is not None)


# ---------------------------------------------------------------------------------------------------------------- kinds


def read_text(value: object) -> str:
    """Text. Raises: ValueError: it is none."""
    if not isinstance(value, str):
        raise ValueError
    return value


def _prefix(value: object) -> str:
    if _PREFIX.fullmatch(read_text(value)) is None:
        raise ValueError("it begins with a slash, and has no dot at either end of a segment, no escapes, no query")
    return read_text(value)


def _upstream(value: object) -> Origin:
    return parse_upstream(read_text(value))


def _pointer(value: object) -> str:
    parse_pointer(read_text(value))
    return read_text(value)


def _scalar(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise ValueError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("JSON has no such number")
    return value


def _scalars(value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError
    return tuple(_scalar(one) for one in value)


def read_statuses(value: object, *, least: int = 300) -> tuple[int, ...]:
    """Statuses from ``least`` to 599. Raises: ValueError: it is no list of such."""
    if not isinstance(value, list | tuple):
        raise ValueError
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int) or not least <= one <= 599:
            raise ValueError(f"{show(one)} is none")
    return tuple(value)


def _free_field(*allowed: str) -> Kind[str]:
    """A field that nothing else depends on, or one of ``allowed``, in lower case."""

    def read(value: object) -> str:
        if TOKEN.fullmatch(read_text(value)) is None:
            raise ValueError
        plain = plain_name(read_text(value))
        if plain not in allowed and (plain in HOP_BY_HOP or _TAKEN.fullmatch(plain) is not None):
            raise ValueError("it has another meaning already, and the request would lose that")
        return read_text(value)

    return Kind("the name of a header field of its own", read, kinds.Lexis.TEXT)


def _check_method(text: str) -> None:
    if _METHOD.fullmatch(text) is None:
        raise ValueError("is no method in capitals")
    if text == "CONNECT":
        raise ValueError("asks for a tunnel, and there are none here")


def _check_replayed(text: str) -> None:
    if TOKEN.fullmatch(text) is None:
        raise ValueError("is no name of a header field")
    if text.lower() in NEVER_REPLAYED:
        raise ValueError("belongs to one answer, connection or caller, and is never replayed")


def _check_network(text: str) -> None:
    TrustedPeers([text])


def _check_ascii(text: str) -> None:
    if not (text.isascii() and text.isprintable()):
        raise ValueError("a header field carries printable ASCII")
