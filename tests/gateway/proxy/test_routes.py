"""Which route a path takes, and which upstreams there are."""

from __future__ import annotations

import pytest

from idemactor.gateway.proxy.routes import AmbiguousPath, InvalidUpstream, Origin, Route, Routes, parse_upstream

UPSTREAM = Origin("http", "127.0.0.1", 9000)


def routes(*prefixes: str) -> Routes:
    return Routes(Route(prefix, UPSTREAM, "default") for prefix in prefixes)


def found(known: Routes, target: str) -> str | None:
    route = known.find(target)
    return None if route is None else route.prefix


@pytest.mark.parametrize(
    ("target", "prefix"),
    [
        ("/orders", "/orders"),
        ("/orders?x=/orders/new", "/orders"),
        ("/orders/", "/orders"),
        ("/orders/1", "/orders"),
        ("/orders/new", "/orders/new"),
        ("/orders/new/1", "/orders/new"),
        ("/orders/newer", "/orders"),
        ("/ordersx", None),
        ("/Orders", None),
        ("/", None),
    ],
)
def test_the_longest_prefix_on_a_segment_boundary_wins(target: str, prefix: str | None) -> None:
    assert found(routes("/orders", "/orders/new"), target) == prefix
    assert found(routes("/orders/new", "/orders"), target) == prefix


def test_a_slash_at_the_end_of_a_prefix_means_nothing() -> None:
    assert found(routes("/orders/"), "/orders") == "/orders/"


def test_everything_is_below_the_root() -> None:
    assert found(routes("/"), "/a%2fb/../c//d") == "/"
    assert found(routes("/", "/a"), "/b") == "/"
    assert found(routes("/", "/a"), "/a/b") == "/a"


@pytest.mark.parametrize(
    "target",
    [
        "/public/../orders",
        "/public/%2e%2e/orders",
        "/public/..%2forders",
        "/public/..%5corders",
        "/public/..\\orders",
        "//orders",
        "/./orders",
        "/%6frders",
        "/%6Frders/1",
        "/orders;x=1",
        "/public/..;/orders",
        "/orders/..",
        "/orders/%2e%2e/public",
    ],
)
def test_nobody_goes_around_a_route(target: str) -> None:
    with pytest.raises(AmbiguousPath):
        routes("/public", "/orders").find(target)


@pytest.mark.parametrize("target", ["/orders/a%20b", "/orders//1", "/orders/./1", "/orders/x/../1", "/orders/1;v=2"])
def test_a_path_that_stays_on_its_route_is_passed(target: str) -> None:
    assert found(routes("/public", "/orders"), target) == "/orders"


@pytest.mark.parametrize(
    ("text", "origin", "authority"),
    [
        ("http://127.0.0.1:9000", Origin("http", "127.0.0.1", 9000), "127.0.0.1:9000"),
        ("http://orders", Origin("http", "orders", 80), "orders"),
        ("https://api.example.org/", Origin("https", "api.example.org", 443), "api.example.org"),
        ("https://api.example.org:8443", Origin("https", "api.example.org", 8443), "api.example.org:8443"),
        ("http://[::1]:81", Origin("http", "::1", 81), "[::1]:81"),
        ("unix:/run/orders.sock", Origin("http", "", 0, "/run/orders.sock"), "localhost"),
    ],
)
def test_upstreams(text: str, origin: Origin, authority: str) -> None:
    assert parse_upstream(text) == origin
    assert origin.authority == authority


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders:80", "ftp://a", "http://", "http://a/b", "http://a?b", "http://a#b", "http://u@a", "http://a:x"),
        *(
            "http://a:99999",
            "unix:",
            "unix:relative",
            "unix:/a\0b",
            "unix:/a\n",
            "unix:/a ",
            "http://a:0",
            "http://a b",
        ),
        *(" http://a", "http://a ", "http://a\n", "http://a\tb", "http://a\n:80", "http://b\u00fccher", "http://a\x7f"),
        *(
            "http://a%20b",
            "http://a<b",
            "http://a,b",
            "http://[::1",
            "http://[x::]",
            "http://[fe80::1%25e]:1/x",
            "http://a:",
        ),
    ],
)
def test_what_is_no_upstream(text: str) -> None:
    with pytest.raises(InvalidUpstream):
        parse_upstream(text)
