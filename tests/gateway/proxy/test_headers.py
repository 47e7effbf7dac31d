"""Which header fields go on, which are ours, and which are replayed."""

from __future__ import annotations

import pytest

from idemactor.gateway.proxy.headers import (
    Peer,
    TrustedPeers,
    end_to_end,
    forwarded,
    key_value,
    readable,
    replayable,
    with_key,
    without,
    without_decisions,
)
from idemactor.wire.idempotency_key import parse_key_header


def test_what_belongs_to_the_connection_stays_there() -> None:
    pairs = (
        ("Connection", "close, X-Hop"),
        ("x-hop", "1"),
        ("Keep-Alive", "5"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "x"),
        ("Proxy-Authorization", "Basic x"),
        ("Transfer-Encoding", "chunked"),
        ("X-Kept", "1"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
    )
    assert end_to_end(pairs) == (("X-Kept", "1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))


def test_no_connection_takes_out_what_is_for_the_upstream() -> None:
    kept = (("Host", "a"), ("Idempotency-Key", "k"), ("X-Forwarded-For", "10.0.0.1"), ("X-Real-IP", "10.0.0.1"))
    named = ("Connection", "host, idempotency_KEY, X-Forwarded-For,x-real-ip, X-Hop")
    assert end_to_end((named, *kept, ("X-Hop", "1"))) == kept


@pytest.mark.parametrize(
    "name",
    [
        *("Idempotency-Operation-Id", "idempotency_operation_id", "IDEMPOTENCY-TAKEOVER", "Idempotency_Attempt"),
        *("Idempotent-Replayed", "X-Idemactor-Anything", "Idempotency_Key", "X-Order-Id", "x_order_id"),
        *("Idempotency.Key", "idempotency~takeover", "X_Idemactor.Anything"),
    ],
)
def test_nobody_else_says_what_was_decided(name: str) -> None:
    assert without_decisions(((name, "x"),), "X-Order-ID") == ()


@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key", "X-Order", "Idempotency"])
def test_what_says_nothing_about_it_passes(name: str) -> None:
    assert without_decisions(((name, "x"),), "X-Order-ID") == ((name, "x"),)


SPOOFED = (
    ("Host", "shop.example"),
    ("X-Forwarded-For", "6.6.6.6"),
    ("X-FORWARDED-FOR", "7.7.7.7"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "evil.example"),
    ("Forwarded", "for=6.6.6.6"),
    ("X-Real-IP", "6.6.6.6"),
)


def test_an_untrusted_peer_says_nothing_about_where_a_request_comes_from() -> None:
    assert forwarded(SPOOFED, Peer("10.0.0.9", "http")) == (
        ("Host", "shop.example"),
        ("X-Forwarded-For", "10.0.0.9"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Host", "shop.example"),
    )


OTHER_SPELLINGS = [
    *("X_Forwarded_For", "x-forwarded_for", "X.Forwarded.For", "X_FORWARDED_PROTO", "X_Forwarded_Host"),
    *("X_Real_IP", "X_Original_URL"),
]


@pytest.mark.parametrize("name", OTHER_SPELLINGS)
@pytest.mark.parametrize("trusted", [False, True])
def test_another_spelling_says_nothing_about_it_either(name: str, trusted: bool) -> None:
    peer = Peer("10.0.0.9", "http", trusted=trusted)
    assert forwarded(((name, "6.6.6.6"),), peer) == forwarded((), peer)


@pytest.mark.parametrize(
    "name",
    [
        *("X-Forwarded-Ssl", "X-Forwarded-Scheme", "X-Forwarded-Client-Cert", "X-Forwarded-Port"),
        *("X-Original-URL", "X-Rewrite-URL"),
    ],
)
def test_what_only_a_proxy_may_say(name: str) -> None:
    assert forwarded(((name, "x"),), Peer("10.0.0.9", "http")) == forwarded((), Peer("10.0.0.9", "http"))
    assert (name, "x") in forwarded(((name, "x"),), Peer("10.0.0.9", "http", trusted=True))


@pytest.mark.parametrize(
    "name", ["Transfer_Encoding", "transfer.encoding", "Keep_Alive", "PROXY_CONNECTION", "X_Hop", "Proxy_Authorization"]
)
def test_what_belongs_to_the_connection_stays_there_in_any_spelling(name: str) -> None:
    assert end_to_end((("Connection", "X-Hop"), (name, "chunked"), ("X_Kept", "1"))) == (("X_Kept", "1"),)


def test_a_field_is_taken_out_in_every_spelling() -> None:
    assert without((("Content_Length", "5"), ("CONTENT-LENGTH", "6"), ("Content", "x")), "content-length") == (
        ("Content", "x"),
    )


def test_a_trusted_peer_is_believed_and_added() -> None:
    assert forwarded(SPOOFED, Peer("10.0.0.9", "http", trusted=True)) == (
        ("Host", "shop.example"),
        ("Forwarded", "for=6.6.6.6"),
        ("X-Real-IP", "6.6.6.6"),
        ("X-Forwarded-For", "6.6.6.6, 7.7.7.7, 10.0.0.9"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "evil.example"),
    )


def test_a_peer_without_an_address() -> None:
    assert ("X-Forwarded-For", "unknown") in forwarded((), Peer("", "https"))


def test_trusted_peers() -> None:
    trusted = TrustedPeers(["10.0.0.0/8", "::1", "unix"])
    assert [host in trusted for host in ("10.1.2.3", "::ffff:10.1.2.3", "::1", "")] == [True] * 4
    assert [host in trusted for host in ("11.1.2.3", "::2", "fe80::1%eth0")] == [False] * 3
    assert "" not in TrustedPeers(["10.0.0.0/8"])
    with pytest.raises(ValueError, match="does not appear"):
        TrustedPeers(["everybody"])


@pytest.mark.parametrize("key", ["k-1", "a key", 'with "quotes" and \\', "a,b;c", "x" * 256])
def test_the_key_goes_on_in_a_form_that_is_read_as_that_key(key: str) -> None:
    assert parse_key_header([key_value(key, "other").encode()]) == key


def test_a_key_that_no_header_can_carry_goes_on_as_the_operation() -> None:
    assert key_value("schlüssel", "0190-op") == "0190-op"


def test_the_clients_own_key_is_left_as_it_wrote_it_where_it_is_the_key() -> None:
    assert with_key((("idempotency-KEY", '"k"; a=1'),), "k", "op") == (("idempotency-KEY", '"k"; a=1'),)
    assert with_key((("Idempotency-Key", "other"),), "k", "op") == (("Idempotency-Key", "k"),)
    assert with_key((("Idempotency-Key", "k"), ("Idempotency-Key", "k")), "k", "op") == (("Idempotency-Key", "k"),)
    assert with_key((("A", "b"),), "k", "op") == (("A", "b"), ("Idempotency-Key", "k"))


@pytest.mark.parametrize(
    ("sent", "cut"),
    [("gzip, br", "gzip"), ("br", "identity"), ("gzip;q=0.5, zstd, deflate", "gzip;q=0.5, deflate"), ("*", "identity")],
)
def test_the_upstream_is_asked_for_what_can_be_read(sent: str, cut: str) -> None:
    assert readable((("Accept-Encoding", sent), ("A", "b"))) == (("Accept-Encoding", cut), ("A", "b"))


def test_what_is_replayed() -> None:
    pairs = (
        ("content-type", "a/b"),
        ("Date", "now"),
        ("X-Order", "7"),
        ("Set-Cookie", "a=1"),
        ("ETag", '"x"'),
        ("Connection", "ETag"),
        ("WWW-Authenticate", "Bearer"),
        ("Content-Encoding", "gzip"),
        ("Content-Length", "5"),
        ("Location", "/7"),
        ("X-Secret", "s"),
    )
    kept = (("content-type", "a/b"), ("X-Order", "7"), ("Content-Encoding", "gzip"), ("Location", "/7"))
    assert replayable(pairs, frozenset({"x-order", "set-cookie", "date", "www-authenticate"})) == kept
