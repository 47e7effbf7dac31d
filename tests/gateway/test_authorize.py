"""The question of a gateway, as each passes on the request that it asks about, and as a client would like to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.errors import InvalidRequest
from idemactor.gateway.authorize import (
    Question,
    bodiless,
    check_not_joined,
    needs_body,
    original_request,
    read_question,
    reads_body,
    request_id_of,
)
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.request import RawRequest
from idemactor.gateway.source import Source
from idemactor.gateway.verify import Scheme, Verify
from idemactor.gateway.words import Format

Headers = list[tuple[str, str]]

NGINX = [("X-Original-Method", "POST"), ("X-Original-URI", "/orders?x=1")]
FORWARDED = [("X-Forwarded-Method", "POST"), ("X-Forwarded-Uri", "/orders?x=1")]
ASKED = Question()
ENVOY = Question(target="/orders?x=1")
KEY = ("Idempotency-Key", "k")


def original(
    headers: Headers, question: Question = ASKED, *, method: str = "GET", body: bytes = b"", keep: bool = True
) -> RawRequest:
    return original_request(question, method, headers, body, keep_authorization=keep)


def blamed(headers: Headers, question: Question = ASKED, *, method: str = "GET") -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        original(headers, question, method=method)
    return caught.value.field


# ---------------------------------------------------------------------------------------------------------- the query


@pytest.mark.parametrize(
    ("query", "question"),
    [
        ("", Question("http", 200)),
        ("source=tradingview&proceed=204&deny=403", Question("tradingview", 204, 403)),
        ("proceed=204&deny=answer", Question("http", 204, None, True)),
        ("uri=/a", Question(target="/a")),
        ("source=github&proceed=200&uri=/a?b=c", Question("github", target="/a?b=c")),
        # What a client writes behind uri= is its own path, and never a parameter of the gateway.
        ("deny=409&uri=/a?deny=answer&proceed=299", Question(deny=409, target="/a?deny=answer&proceed=299")),
        ("source=a&uri=/b&uri=/c", Question("a", target="/b&uri=/c")),
        ("uri=", Question(target="")),
        ("source=a&&proceed=201", Question("a", 201)),
    ],
)
def test_the_query(query: str, question: Question) -> None:
    assert read_question(query) == question


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("sources=http", "sources"),
        ("source=a&source=b", "source"),
        ("proceed=199", "proceed"),
        ("proceed=300", "proceed"),
        ("proceed=403", "proceed"),
        ("proceed=", "proceed"),
        ("proceed=2%300", "proceed"),
        ("proceed=٢٠٤", "proceed"),
        ("deny=200", "deny"),
        ("deny=204", "deny"),
        ("deny=302", "deny"),
        ("deny=600", "deny"),
        ("deny=", "deny"),
        ("deny=Answer", "deny"),
        ("deny=403&deny=answer", "deny"),
        # Envoy goes on at 200 alone: with 204 every request would be refused, although its key was accepted.
        ("proceed=204&uri=/a", "proceed"),
        ("x" * 1_000 + "=1", "x" * 64),
    ],
)
def test_a_query_that_is_none(query: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_question(query)
    assert caught.value.field == field


# -------------------------------------------------------------------------------------------------------- the request


@pytest.mark.parametrize("told", [NGINX, FORWARDED, NGINX + FORWARDED])
def test_what_headers_tell(told: Headers) -> None:
    for headers in ([*told, KEY], [KEY, *((name.lower(), value) for name, value in told)]):
        assert original(headers) == RawRequest("POST", "/orders?x=1", (KEY,), b"")


def test_what_envoy_tells() -> None:
    asked = [KEY, ("x-envoy-auth-partial-body", "false"), ("content-length", "7"), ("content-type", "text/plain")]
    found = original(asked, ENVOY, method="PATCH", body=b"a body!")
    assert found == RawRequest("PATCH", "/orders?x=1", (KEY, ("content-type", "text/plain")), b"a body!")
    # What a client would like it to be is not asked: the path is behind the gateway's own.
    spoofed = [*asked, ("X-Original-URI", "/evil"), ("X-Forwarded-Uri", "/worse"), ("X-Original-Method", "GET")]
    assert original(spoofed, ENVOY, method="PATCH", body=b"a body!") == found


def test_an_empty_header_is_a_removed_one() -> None:
    removed = [("X-Forwarded-Method", ""), ("X-Forwarded-Uri", " ")]
    assert original([*NGINX, *removed]).path == "/orders?x=1"


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ([], "X-Original-URI"),
        ([KEY], "X-Original-URI"),
        (NGINX[:1], "X-Original-URI"),
        (NGINX[1:], "X-Original-Method"),
        (FORWARDED[:1], "X-Forwarded-Uri"),
        (FORWARDED[1:], "X-Forwarded-Method"),
        ([*NGINX, ("X-Original-URI", "/evil")], "X-Original-URI"),
        ([*FORWARDED, ("x-forwarded-method", "POST")], "X-Forwarded-Method"),
        ([*NGINX, ("X-Forwarded-Method", "POST"), ("X-Forwarded-Uri", "/evil")], "X-Original-URI"),
        ([*NGINX, ("X-Forwarded-Method", "PUT"), FORWARDED[1]], "X-Original-URI"),
        ([*NGINX, ("X-Forwarded-Uri", "/evil")], "X-Forwarded-Method"),
        ([("X-Original-Method", "PO ST"), NGINX[1]], "X-Original-Method"),
        ([("X-Original-Method", "P" * 65), NGINX[1]], "X-Original-Method"),
        ([NGINX[0], ("X-Original-URI", "orders")], "X-Original-URI"),
        ([NGINX[0], ("X-Original-URI", "http://elsewhere/orders")], "X-Original-URI"),
        ([NGINX[0], ("X-Original-URI", "/a b")], "X-Original-URI"),
        ([NGINX[0], ("X-Original-URI", "/a\x7f")], "X-Original-URI"),
        ([("X-Forwarded-Method", "PO ST"), FORWARDED[1]], "X-Forwarded-Method"),
        ([FORWARDED[0], ("X-Forwarded-Uri", "orders")], "X-Forwarded-Uri"),
        ([*NGINX, ("X-Envoy-Auth-Partial-Body", "true")], "body"),
        ([*NGINX, ("X-Envoy-Auth-Partial-Body", "false"), ("x-envoy-auth-partial-body", "true")], "body"),
    ],
)
def test_what_is_not_told_clearly(headers: Headers, field: str) -> None:
    assert blamed(headers) == field


@pytest.mark.parametrize("target", ["", "orders", "/a b", "http://elsewhere/"])
def test_a_path_of_envoys_that_is_none(target: str) -> None:
    assert blamed([], Question(target=target), method="POST") == "uri"


def test_a_method_of_envoys_that_is_none() -> None:
    assert blamed([], ENVOY, method="PO ST") == "method"


@pytest.mark.parametrize("source", ["http", "github", "stripe", "tradingview"])
def test_ids_that_were_joined(source: str) -> None:
    """A comma in an id of a request that Envoy asks about, and nowhere else."""
    found = SHIPPED[source]
    theirs = {"http": "Idempotency-Key", "github": "X-GitHub-Delivery"}
    for name in ("Idempotency-Key", "X-GitHub-Delivery", "Accept"):
        asked = RawRequest("POST", "/", ((name.lower(), "a,b"),), b"")
        check_not_joined(found, ASKED, asked)
        if name == theirs.get(source) or (name == "Idempotency-Key" and found.reads_key_header):
            with pytest.raises(InvalidRequest) as caught:
                check_not_joined(found, ENVOY, asked)
            assert caught.value.field == f"header:{name}"
        else:
            check_not_joined(found, ENVOY, asked)
    check_not_joined(found, ENVOY, RawRequest("POST", "/", (KEY, ("X-GitHub-Delivery", "d")), b""))


@pytest.mark.parametrize("target", ["/", "/a?b=%2F&c=/d?e", "*", "/h\xc3\xb6he", "//a"])
def test_paths_stay_as_they_were_sent(target: str) -> None:
    assert original([NGINX[0], ("X-Original-URI", target)]).path == target


def test_what_is_the_gateways_is_not_the_senders() -> None:
    own: Headers = [
        ("X-Idemactor-Authorization", "Bearer gateway"),
        ("x-idemactor-request-id", "r"),
        ("X-IDEMACTOR-RESULT", "completed"),
        ("Connection", "close"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "0"),
        ("Expect", "100-continue"),
    ]
    senders: Headers = [("X-GitHub-Delivery", "d"), ("X-GitHub-Delivery", "e"), ("Host", "shop"), KEY]
    assert original([*NGINX, *own, *senders]).headers == tuple(senders)


def test_whose_authorization_it_is() -> None:
    headers = [*NGINX, ("authorization", "Bearer x")]
    assert original(headers).header("Authorization") == ["Bearer x"]
    assert original(headers, keep=False).header("Authorization") == []


def test_without_a_body_it_has_no_type() -> None:
    headers = [*NGINX, ("Content-Type", "multipart/form-data"), ("Content-Encoding", "gzip")]
    assert original(headers).headers == ()
    assert len(original(headers, body=b"b").headers) == 2


@pytest.mark.parametrize(
    ("question", "also"),
    [
        (Question(with_success=True), NGINX),
        (Question(proceed=204, with_success=True), [*FORWARDED, ("X-Forwarded-Server", "t")]),
    ],
)
def test_a_duplicate_is_never_told_a_success_that_lets_it_through(question: Question, also: Headers) -> None:
    assert blamed(also, question) == "deny"


def test_where_a_success_is_told_apart() -> None:
    assert original(FORWARDED, Question(proceed=204, with_success=True)).path == "/orders?x=1"
    traefik = [("X-Forwarded-Server", "t")]
    assert original(traefik, Question(with_success=True, target="/a"), method="POST").path == "/a"


NAMES = (
    "X-Original-Method",
    "X-Original-URI",
    "X-Forwarded-Method",
    "x-forwarded-uri",
    "X-Forwarded-Server",
    "Connection",
)
VALUES = st.one_of(
    st.sampled_from(["", "GET", "POST", "/", "/orders?x=1", "/other", "*", "//", "/a b", "http://x/", "PO ST"]),
    st.text(st.characters(min_codepoint=0, max_codepoint=255), max_size=12),
)


@given(
    mine=st.sampled_from([NGINX, FORWARDED]),
    theirs=st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6),
    first=st.booleans(),
)
def test_a_client_never_makes_it_another_request(mine: Headers, theirs: Headers, first: bool) -> None:
    """Beside what the gateway says, whatever a client sends leads to the same request or to a refusal."""
    headers = [*theirs, *mine] if first else [*mine, *theirs]
    try:
        found = original(headers)
    except InvalidRequest:
        return
    assert (found.method, found.path) == ("POST", "/orders?x=1")


@given(
    own=st.sampled_from(["", "source=a", "source=a&proceed=200&deny=403", "deny=answer"]),
    target=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40),
)
def test_a_path_is_never_a_parameter(own: str, target: str) -> None:
    query = f"{own}&uri={target}" if own else f"uri={target}"
    assert read_question(query) == replace(read_question(own), target=target)


@given(st.text(max_size=60))
def test_any_query_is_read_or_refused(query: str) -> None:
    try:
        question = read_question(query)
    except InvalidRequest:
        return
    assert 200 <= question.proceed < 300
    assert question.deny is None or 400 <= question.deny < 600


# --------------------------------------------------------------------------------------------------------- request ids


def test_request_ids() -> None:
    assert request_id_of([]) is None
    assert request_id_of(["6f0b"]) == "6f0b"
    assert request_id_of(["r" * 128]) == "r" * 128
    for values in (["a", "a"], [""], ["r" * 129], ["a b"], ["a\t"], ["ä"], ["a\x00"]):
        with pytest.raises(InvalidRequest) as caught:
            request_id_of(values)
        assert caught.value.field == "X-Idemactor-Request-Id"


# -------------------------------------------------------------------------------------------------------------- bodies


def test_what_needs_a_body() -> None:
    signed = Source("a", verify=Verify(Scheme.GITHUB, ("E",), ("s",)), id=("header:a",))
    assert needs_body(signed, derived=False)
    for source in (
        Source("a", derive=("/x",)),
        Source("a", derive=("body",)),
        Source("a", nonce="/n", derive=("path",)),
    ):
        assert needs_body(source, derived=True)
        assert needs_body(source, derived=False) is None
    assert needs_body(Source("a", mode="/test", id=("header:a",)), derived=False)
    assert (
        needs_body(Source("a", derive=("path", "header:a"), nonce="header:n", mode="query:test"), derived=True) is None
    )
    for name in ("http", "github", "shopify", "standard-webhooks", "svix"):
        assert needs_body(SHIPPED[name], derived=False) is None
        assert not reads_body(SHIPPED[name])
    for name in ("tradingview", "stripe", "slack", "hoox"):
        assert reads_body(SHIPPED[name])
    assert reads_body(Source("a", id=(("header:a", "/b"),)))


def test_a_body_that_is_not_there_is_of_no_format() -> None:
    assert bodiless(SHIPPED["shopify"]).format is Format.AUTO
    assert bodiless(SHIPPED["shopify"]).id == SHIPPED["shopify"].id
    text = Source("a", format=Format.TEXT, pattern="(?P<a>.*)", derive=("/a",))
    assert bodiless(text).pattern is None
    assert bodiless(SHIPPED["http"]) is SHIPPED["http"]
