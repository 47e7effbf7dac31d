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
    assert found(routes("/"), "/a%2fb/./c//d") == "/"
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
        "/orders%20",
        "/orders%20/1",
        "/%20orders",
        "/orders.",
        "/orders./1",
        "/orders..",
        "/orders.%20.",
        "/public/..%20/orders",
        "/orders%3fx",
        "/orders%23",
        "/orders%3Bx",
        "/%256frders",
        "/public/..;%252f/orders",
    ],
)
def test_nobody_goes_around_a_route(target: str) -> None:
    for prefixes in (("/public", "/orders"), ("/", "/public", "/orders")):
        with pytest.raises(AmbiguousPath):
            routes(*prefixes).find(target)


@pytest.mark.parametrize(
    "target",
    [
        "/orders%00",
        "/x/..%00/orders",
        "/x%0a",
        "/x%1F",
        "/x%7f",
        "/x/%252e%252e/orders",
        "/x/%252E%252E%252Forders",
        "/x/%25%32%65/orders",
        "/x%2525252e",
        "/x%255cy",
        "/x%2500",
        "/x/%c0%ae%c0%ae/orders",
        "/x/..%c0%afy",
        "/x/%C1%9Cy",
        "/x/%c0%2e/y",
        "/x/%e0%80%ae",
        "/x/%f0%80%80%ae",
        "/x/%f8%80%80%80%ae",
        "/x/%fc%80%80%80%80%ae",
        # Whether an escaped slash parts segments, and an empty one counts, decides what is left after going up.
        "/x/a%2fb/../../orders",
        "/x/a%5cb/../../orders",
        "/x/a\\b/../../orders",
        "/x/a//../../x",
        "/x/../orders%3f/../x",
        "/x/.../y",
        "/x/.%20./y",
        "/x/%u002e%u002e/orders",
        "/x/%",
        "/x/%2",
        "/x/%zz",
    ],
)
def test_what_is_written_for_no_other_reader_is_refused_wherever_it_leads(target: str) -> None:
    for prefixes in (("/",), ("/", "/orders"), ("/x",)):
        with pytest.raises(AmbiguousPath):
            routes(*prefixes).find(target)


@pytest.mark.parametrize(
    "target", ["/caf%c3%a9", "/caf%e9", "/%f0%9f%98%80", "/%e2%82%ac/%ef%bc%8e", "/100%25", "/a%2520b"]
)
def test_other_escapes_pass(target: str) -> None:
    assert found(routes("/", "/orders"), target) == "/"


def test_case_counts() -> None:
    assert found(routes("/", "/orders"), "/Orders") == "/"


@pytest.mark.parametrize(
    "target",
    [
        *("/orders/a%20b", "/orders//1", "/orders/./1", "/orders/x/../1", "/orders/1;v=2", "/orders/1."),
        *(
            "/orders/../orders/1",
            "/orders/a/./../b/..",
            "/orders/%20",
            "/orders/a%3fb",
            "/orders/a%252db",
            "/orders/v1.2/x",
        ),
    ],
)
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


@pytest.mark.parametrize("text", ["http://u@a", "https://u:secret@a:80", "http://:secret@a"])
def test_credentials_in_a_url_are_named_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidUpstream, match="has a user or a password in it") as caught:
        parse_upstream(text)
    assert "secret" not in str(caught.value)
