"""Forward-auth in front of an application, through each real gateway as ``examples/gateways`` configures it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from idemactor.config import load
from tests.system.clients import connect
from tests.system.forward_auth.application import Application
from tests.system.forward_auth.gateways import CADDY, ENVOY, KINDS, NGINX, SERVER_CONFIG, TOKEN, TRAEFIK, Gateway, Kind
from tests.system.forward_auth.gateways import running as gateway_running
from tests.system.forward_auth.relay import Relay
from tests.system.process import Server, environment, eventually
from tests.system.programs import PATIENCE_S, free_port, installed

OTHER_TOKEN: Final = "of-another-tenant"
OTHER: Final = f"""
[auth.tokens.other]
sha256 = "{hashlib.sha256(OTHER_TOKEN.encode()).hexdigest()}"
tenant = "other"
namespaces = ["*"]
role = "operator"
"""
AT_ONCE: Final = 20
KEPT: Final = 6
"""Connections to the application that a gateway could keep."""
DECISIONS: Final = (
    ("Idempotency-Operation-Id", "forged"),
    ("Idempotency-Takeover", "forged"),
    ("Idempotency-Attempt", "forged"),
    ("Idempotency-Unprotected", "forged"),
    ("idempotency-operation-id", "forged"),
    ("Idempotency_Operation_Id", "forged"),
    ("IDEMPOTENCY_TAKEOVER", "forged"),
    ("X-Idemactor-Result", "completed"),
    ("X-Idemactor-Request-Id", "forged"),
    ("X-Idemactor-Authorization", f"Bearer {OTHER_TOKEN}"),
)

_keys = iter(range(1, 1_000_000))


def unique(what: str) -> str:
    return f"{what}-{next(_keys)}"


@dataclass(frozen=True)
class Site:
    """A gateway, what stands behind it, and what it asks."""

    gateway: Gateway
    application: Application
    server: Server

    @property
    def kind(self) -> Kind:
        return self.gateway.kind

    def ask(self, op: str, namespace: str = "orders", bearer: str = TOKEN, **members: Any) -> dict[str, Any]:
        """A call to idemactor beside the gateway."""
        url = f"http://{self.server.http}/v1/{namespace}/{op}"
        told: dict[str, Any] = httpx.post(
            url, json=members, headers={"Authorization": f"Bearer {bearer}"}, verify=False
        ).json()
        return told

    def asked_twice(self, key: str) -> tuple[httpx.Response, httpx.Response]:
        """The answers to a request and to its resend."""
        return self.gateway.order(key), self.gateway.order(key)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("idemactor"), SERVER_CONFIG + OTHER) as found:
        yield found


@pytest.fixture(scope="module", params=KINDS, ids=str)
def site(request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    kind: Kind = request.param
    home = tmp_path_factory.mktemp(kind.name)
    with Application() as application, gateway_running(kind, home, server.http, application.address) as gateway:
        yield Site(gateway, application, server)


@contextlib.contextmanager
def another(site: Site, home: Path, **options: Any) -> Iterator[Gateway]:
    """Another gateway of the same kind, before the same application."""
    with gateway_running(site.kind, home, site.server.http, site.application.address, **options) as found:
        yield found


def exactly(site: Site, method: str, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    """The answer to a request whose method, path and Host go out as they are, on a connection of its own."""
    connection = http.client.HTTPConnection(site.gateway.address, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in {"Content-Type": "application/json", "Content-Length": "2", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(b"{}")
        answer = connection.getresponse()
        answer.read()
        return answer


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    told: dict[str, Any] = answer.json()
    assert told["code"] == f"IDEMPOTENCY_{code}"
    return told


# ------------------------------------------------------------------------------------------------------ once, no more


def test_the_first_passes(site: Site) -> None:
    key = unique("first")
    answer = site.gateway.order(key, path="/orders/7?dry=0&deny=answer")
    assert (answer.status_code, list(answer.json())) == (201, ["order"])
    [seen] = site.application.with_key(key)
    assert (seen.method, seen.path, seen.body) == ("POST", "/orders/7?dry=0&deny=answer", b'{"quantity": 1}')
    record = site.ask("get", key=key)["record"]
    assert record["state"] == "committed"
    assert seen.headers["idempotency-operation-id"] == record["operation_id"]
    assert seen.headers["idempotency-takeover"] == "false"
    assert not [name for name in seen.headers if name.startswith("x-idemactor-")]


def test_a_duplicate_is_refused(site: Site) -> None:
    key = unique("duplicate")
    first, again = site.asked_twice(key)
    assert first.status_code == 201
    told = problem(again, 409, "DUPLICATE")
    assert told["proceed"] is False
    assert told["operation_id"] == site.ask("get", key=key)["record"]["operation_id"]
    assert again.headers.get("x-idemactor-result") == (None if site.kind is NGINX else "completed")
    assert len(site.application.with_key(key)) == 1


def test_of_many_at_once_one_passes(site: Site) -> None:
    key = unique("at-once")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = Counter(answer.status_code for answer in pool.map(lambda _: site.gateway.order(key), range(AT_ONCE)))
    assert answers == {201: 1, 409: AT_ONCE - 1}
    assert len(site.application.with_key(key)) == 1


def test_a_stored_answer(site: Site) -> None:
    for status, expected in ((201, 201), (200, site.kind.replayed_ok)):
        key = unique("stored")
        token = site.ask("reserve", key=key)["token"]
        outcome = {
            "status": status,
            "headers": [["Content-Type", "text/plain"], ["Location", "/orders/9"]],
            "body": "nine",
        }
        assert site.ask("commit", key=key, token=token, outcome=outcome)["result"] == "committed"
        answer = site.gateway.order(key)
        if site.kind.replayed_ok is None:
            problem(answer, 409, "DUPLICATE")
        else:
            assert (answer.status_code, answer.text) == (expected, "nine")
            assert answer.headers["content-type"].startswith("text/plain")
            assert answer.headers["location"].endswith("/orders/9")
            assert answer.headers["idempotent-replayed"] == "true"
        assert site.application.with_key(key) == []


def test_a_key_that_is_held(site: Site) -> None:
    key = unique("held")
    site.ask("reserve", key=key, holder="somebody")
    answer = site.gateway.order(key)
    assert problem(answer, 409, "IN_FLIGHT")["holder"] == "somebody"
    assert answer.headers["retry-after"] == "5"
    assert site.application.with_key(key) == []


def test_another_request_under_the_same_key(site: Site) -> None:
    key = unique("mismatch")
    assert site.gateway.order(key).status_code == 201
    for path in ("/orders/8", "/orders?x=1"):
        problem(site.gateway.order(key, path=path), 422, "MISMATCH")
    own = [("Idempotency-Key", key), ("Content-Type", "application/json")]
    problem(site.gateway.send("PATCH", "/orders", own, b'{"quantity": 1}'), 422, "MISMATCH")
    if site.kind.sees_body:
        problem(site.gateway.send("POST", "/orders", own, b'{"quantity": 2}'), 422, "MISMATCH")
    assert len(site.application.with_key(key)) == 1


def test_a_missing_key_is_an_error(site: Site) -> None:
    before = len(site.application.seen)
    assert problem(site.gateway.order(None), 400, "INVALID_REQUEST")["field"] == "header:Idempotency-Key"
    for value in ('"unended', "a,b", "k" * 257):
        assert problem(site.gateway.order(value), 400, "INVALID_REQUEST")["field"] == "header:Idempotency-Key"
    assert problem(site.gateway.order("k", ("Idempotency-Key", "l")), 400, "INVALID_REQUEST")["field"]
    assert len(site.application.seen) == before


def test_other_methods_and_paths_pass_untouched(site: Site) -> None:
    key = unique("untouched")
    untouched = [(method, "/orders/7") for method in ("GET", "GET", "PUT", "DELETE", "OPTIONS")]
    untouched += [("PATCH", "/signals"), ("POST", "/elsewhere"), ("POST", "/x/orders"), ("POST", "/order")]
    for method, path in untouched:
        assert site.gateway.send(method, path, [("Idempotency-Key", key), *DECISIONS]).status_code == 201
    seen = site.application.with_key(key)
    assert len(seen) == len(untouched)
    for one in seen:
        assert "forged" not in one.headers.values()
        assert not [name for name in one.headers if name.startswith("x-idemactor-")]
    assert site.ask("get", key=key)["code"] == "IDEMPOTENCY_UNKNOWN_KEY"


def test_a_path_arrives_as_it_was_sent(site: Site) -> None:
    key, path = unique("path"), "/orders/a%20b?c=%2Fd&e=?f"
    assert site.gateway.order(key, path=path).status_code == 201
    assert site.gateway.order(key, path=path).status_code == 409
    problem(site.gateway.order(key, path="/orders/a%20b?c=%2Fd&e=?g"), 422, "MISMATCH")
    assert [seen.path for seen in site.application.with_key(key)] == [path]


@pytest.mark.parametrize("path", ["//orders", "/./orders", "/x/../orders", "/%6Frders", "/%2e/orders"])
def test_however_a_path_is_spelt_it_is_asked_about(site: Site, path: str) -> None:
    headers = {"Idempotency-Key": unique("spelt")}
    assert [exactly(site, "POST", path, headers).status for _ in range(2)] == [201, 409]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[(method, "/orders") for method in ("POST", "post", "Post", "PATCH", "PaTCH")],
        *[("POST", path) for path in ("/orders/", "/orders.json", "/orders;a=b", "/ordersX", "/Orders", "/orders%3Ba")],
        *[("POST", path) for path in ("/x/..%2forders", "/x/..%2Forders", "/x%2f../orders", "/x/%2e%2e%2forders")],
        *[("POST", f"/hooks/github{more}") for more in ("", "/", ".json", ";a=b")],
        *[("POST", path) for path in ("/HOOKS/github", "/hooks//github")],
        ("post", "/hooks/github"),
    ],
)
def test_no_way_around_the_question(site: Site, method: str, path: str) -> None:
    """What an application may take for a route that is asked about never gets there without a key."""
    before = len(site.application.seen)
    assert 400 <= exactly(site, method, path, {}).status < 500
    assert len(site.application.seen) == before


@pytest.mark.parametrize("host", ["shop.example", "localhost", "[::1]:8080", "127.0.0.1"])
def test_whatever_host_is_asked_for(site: Site, host: str) -> None:
    headers = {"Host": host, "Idempotency-Key": unique("host")}
    assert [exactly(site, "POST", "/orders", headers).status for _ in range(2)] == [201, 409]
    assert len(site.application.with_key(headers["Idempotency-Key"])) == 1
    assert exactly(site, "GET", "/elsewhere", {"Host": host}).status == 201


# ----------------------------------------------------------------------------------------------------- hostile clients


def test_what_was_decided_is_not_a_clients_to_say(site: Site) -> None:
    key = unique("forged")
    assert site.gateway.order(key, *DECISIONS).status_code == 201
    [seen] = site.application.with_key(key)
    assert "forged" not in seen.headers.values()
    assert not [name for name in seen.headers if name.startswith("x-idemactor-")]
    record = site.ask("get", key=key)["record"]
    assert seen.headers["idempotency-operation-id"] == record["operation_id"]
    # The other tenant's token, sent by the client, opened nothing: the key is the gateway's own tenant's.
    assert site.ask("get", bearer=OTHER_TOKEN, key=key)["code"] == "IDEMPOTENCY_UNKNOWN_KEY"
    # And its request id, the same twice, is no leave to go on twice.
    problem(site.gateway.order(key, *DECISIONS), 409, "DUPLICATE")


@pytest.mark.parametrize(
    "header",
    [
        ("X-Request-Id", "the-same-again"),
        ("X-Original-URI", "/other"),
        ("X-Original-Method", "GET"),
        ("X-Forwarded-Uri", "/other"),
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Server", "other"),
        ("X-HTTP-Method-Override", "GET"),
        ("X-Envoy-Original-Path", "/other"),
        ("X-Original-URL", "/other"),
        ("X-Rewrite-URL", "/other"),
        ("Connection", "close, Idempotency-Key"),
    ],
    ids=lambda header: header[0],
)
def test_a_client_that_claims_another_request(site: Site, header: tuple[str, str]) -> None:
    key = unique("claimed")
    answers = [site.gateway.order(key, header), site.gateway.order(key, header), site.gateway.order(key)]
    # A gateway may refuse what is odd; it never lets two through.
    assert answers[0].status_code in (201, 400)
    assert [answer.status_code for answer in answers[1:]].count(201) <= (answers[0].status_code == 400)
    assert len(site.application.with_key(key)) <= 1
    if header[0] != "Connection":
        assert [answer.status_code for answer in answers] == [201, 409, 409]


@pytest.mark.parametrize("named", ["Idempotency-Operation-Id", "Idempotency-Takeover", "X-Idemactor-Request-Id"])
def test_a_client_that_would_have_headers_dropped(site: Site, named: str) -> None:
    """What ``Connection`` names goes no further (RFC 9110, section 7.6.1): what the application is told does."""
    key = unique("dropped")
    assert site.gateway.order(key, ("Connection", f"close, {named}")).status_code == 201
    [seen] = site.application.with_key(key)
    assert seen.headers["idempotency-operation-id"] == site.ask("get", key=key)["record"]["operation_id"]
    assert seen.headers["idempotency-takeover"] == "false"
    problem(site.gateway.order(key, ("Connection", f"close, {named}")), 409, "DUPLICATE")


def test_headers_that_are_too_many_or_too_large(site: Site) -> None:
    """A client's own fault is no outage: whatever it is told, it is not to try again."""
    many = [(f"X-Of-Many-{number}", "x") for number in range(120)]
    large = [("X-Large-1", "x" * 7_000), ("X-Large-2", "x" * 7_000), ("X-Large-3", "x" * 4_000)]
    for headers in (many, large):
        key = unique("headers")
        answer = site.gateway.order(key, *headers)
        # Envoy sends none of them to idemactor, and has limits of its own.
        assert answer.status_code in ((201, 431) if site.kind is ENVOY else (431,))
        assert "retry-after" not in answer.headers
        assert len(site.application.with_key(key)) == (answer.status_code == 201)
    # Cookies are the application's alone.
    if site.kind in (NGINX, ENVOY, CADDY):
        key = unique("cookies")
        cookies = [("Cookie", "a=" + "x" * 6_000)] * 3
        assert site.gateway.order(key, *cookies).status_code == 201
        assert "a=xxx" in site.application.with_key(key)[0].headers["cookie"]


def test_a_body_that_is_compressed(site: Site) -> None:
    key = unique("gzip")
    headers = [("Idempotency-Key", key), ("Content-Type", "application/json"), ("Content-Encoding", "gzip")]
    body = gzip.compress(b'{"quantity": 1}')
    assert [site.gateway.send("POST", "/orders", headers, body).status_code for _ in range(2)] == [201, 409]
    if site.kind.sees_body:
        # It counts as what it says.
        plain = [("Idempotency-Key", key), ("Content-Type", "application/json")]
        problem(site.gateway.send("POST", "/orders", plain, b'{"quantity": 2}'), 422, "MISMATCH")


def test_parameters_are_the_gateways_alone(site: Site) -> None:
    key, path = unique("parameters"), "/orders?source=github&proceed=200&deny=answer&uri=/x"
    assert site.gateway.order(key, path=path).status_code == 201
    assert site.gateway.order(key, path=path).status_code == 409
    assert [seen.path for seen in site.application.with_key(key)] == [path]


# ------------------------------------------------------------------------------------------------------------- retries


def test_the_gateways_own_question_again(site: Site, home: Path) -> None:
    """The answer of idemactor is lost, and the key is accepted."""
    key = unique("lost")
    # A gateway of its own has no connection yet that it replaces where it breaks: what asks again is the configuration.
    with (
        Relay(site.server.http) as relay,
        gateway_running(site.kind, home, relay.address, site.application.address) as gateway,
    ):
        relay.lose = 1
        answer = gateway.order(key)
        assert relay.lost == 1
    if site.kind.has_request_ids:
        assert answer.status_code == 201
        assert len(site.application.with_key(key)) == 1
    else:
        # The price where the gateway has no name for its own request: it fails closed, and the sender's resend is a
        # duplicate of what never ran.
        assert answer.status_code == site.kind.closed
        assert site.application.with_key(key) == []
    problem(site.gateway.order(key), 409, "DUPLICATE")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_an_application_that_closes_before_it_answers(site: Site, method: str) -> None:
    """Go's transport sends what has no body and an ``Idempotency-Key`` again, over each connection that it had kept."""
    site.application.together = threading.Barrier(KEPT)
    with ThreadPoolExecutor(KEPT) as pool:
        keys = [[("Idempotency-Key", unique("kept"))] for _ in range(KEPT)]
        kept = list(pool.map(lambda own: site.gateway.send("POST", "/orders?together", own).status_code, keys))
    assert kept == [201] * KEPT
    key = unique("closes")
    site.application.fail_next = KEPT + 1
    try:
        answer = site.gateway.send(method, "/orders", [("Idempotency-Key", key)])
    finally:
        site.application.fail_next = 0
    assert answer.status_code in (502, 503)
    assert len(site.application.with_key(key)) == 1


@pytest.mark.parametrize("site", [NGINX], indirect=True, ids=str)
@pytest.mark.parametrize("lost", [1, 2])
def test_the_second_step_whose_answer_is_lost(site: Site, home: Path, lost: int) -> None:
    key = unique("verdict")
    with (
        Relay(site.server.http) as relay,
        gateway_running(site.kind, home, relay.address, site.application.address) as gateway,
    ):
        assert gateway.order(key).status_code == 201
        relay.about, relay.lose = b"/verdict", lost
        answer = gateway.order(key)
    if lost == 1:
        problem(answer, 409, "DUPLICATE")
    else:
        problem(answer, 503, "UNAVAILABLE")
        assert answer.headers["retry-after"] == "1"
    assert len(site.application.with_key(key)) == 1


def test_a_sender_that_breaks_off(site: Site) -> None:
    """Who sends the body along has all of it before it asks; the others ask first, and the key is accepted."""
    key = unique("breaks-off")
    head = f"POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: {key}\r\nContent-Length: 9\r\n\r\n"
    with connect(site.gateway.address) as sender:
        sender.sendall(head.encode() + b"half")
        if not site.kind.sees_body:
            eventually(lambda: "record" in site.ask("get", key=key), PATIENCE_S)
    assert site.gateway.order(key).status_code == (201 if site.kind.sees_body else 409)
    # Caddy passes on what there is of a body.
    assert [seen.body for seen in site.application.with_key(key) if seen.body != b"half"] == (
        [b'{"quantity": 1}'] if site.kind.sees_body else []
    )


@pytest.mark.parametrize("site", [NGINX], indirect=True, ids=str)
def test_a_failure_of_the_gateway_after_the_yes_is_no_outage(site: Site, home: Path) -> None:
    """nginx writes a large body to a file, after it asked: where it cannot, no other try will get through."""
    key = unique("unwritable")
    with another(site, home) as gateway:
        (home / "client_body").rmdir()
        headers = [("Idempotency-Key", key)]
        answer = gateway.send("POST", "/orders", headers, b"x" * 100_000)
        assert answer.status_code == 500
        assert "retry-after" not in answer.headers
        problem(gateway.send("POST", "/orders", headers, b"x"), 409, "DUPLICATE")
    assert site.application.with_key(key) == []


def test_an_instance_that_is_down_is_not_asked_about_again(site: Site, home: Path) -> None:
    """The gateway's own retry of the application is behind the question."""
    dead = f"127.0.0.1:{free_port()}"
    with gateway_running(site.kind, home, site.server.http, dead, site.application.address) as gateway:
        keys = [unique("retried") for _ in range(8)]
        assert [gateway.order(key).status_code for key in keys] == [201] * len(keys)
        assert [gateway.order(key).status_code for key in keys] == [409] * len(keys)
        assert [len(site.application.with_key(key)) for key in keys] == [1] * len(keys)


def test_the_price(site: Site) -> None:
    """The key is accepted before the application ran: where that fails, the resend is a duplicate all the same."""
    key = unique("price")
    site.application.fail_next = 1
    answer = site.gateway.order(key)
    assert answer.status_code in (502, 503)
    problem(site.gateway.order(key), 409, "DUPLICATE")
    assert len(site.application.with_key(key)) == 1


def test_without_idemactor_nothing_goes_on(site: Site, home: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with gateway_running(site.kind, home, nobody, site.application.address) as gateway:
        key = unique("closed")
        assert gateway.order(key).status_code == site.kind.closed
        assert site.application.with_key(key) == []
        assert gateway.send("GET", "/orders", [("Idempotency-Key", key)]).status_code == 201


def test_with_a_token_that_nobody_knows_nothing_goes_on(site: Site, home: Path) -> None:
    with another(site, home, token="nobody's") as gateway:
        key = unique("unknown")
        assert gateway.order(key).status_code == (503 if site.kind is NGINX else 401)
        assert site.application.with_key(key) == []


def test_two_tenants_with_the_same_key(site: Site, home: Path) -> None:
    key = unique("tenants")
    with another(site, home, token=OTHER_TOKEN) as gateway:
        assert [site.gateway.order(key).status_code, gateway.order(key).status_code] == [201, 201]
        assert [site.gateway.order(key).status_code, gateway.order(key).status_code] == [409, 409]
    seen = site.application.with_key(key)
    assert len({one.headers["idempotency-operation-id"] for one in seen}) == len(seen) == 2


# ------------------------------------------------------------------------------------------------------------ webhooks


def test_the_source_that_the_example_proposes(tmp_path: Path) -> None:
    """Its lines are comments: without them nobody has to have a secret."""
    file = tmp_path / "idemactor.toml"
    file.write_text(re.sub(r"(?m)^#(?=\S)", "", SERVER_CONFIG))
    github = load(file, environment={"GITHUB_WEBHOOK_SECRET": "it's a secret to everybody"}).sources["github"]
    assert github.namespace == "hooks"
    assert github.verify is not None


def test_deliveries_of_github(site: Site) -> None:
    delivery = unique("delivery")
    headers = [("X-GitHub-Delivery", delivery), ("Content-Type", "application/json")]
    first, again = (site.gateway.send("POST", "/hooks/github", headers, b"{}") for _ in range(2))
    assert first.status_code == 201
    # It should be told a success; what counts is that only one delivery arrives.
    if site.kind.replayed_ok is None:
        problem(again, 409, "DUPLICATE")
    else:
        assert (again.status_code, again.json()["result"]) == (site.kind.replayed_ok, "completed")
    assert len(site.application.with_key(delivery)) == 1
    missing = problem(site.gateway.send("POST", "/hooks/github", headers[1:], b"{}"), 400, "INVALID_REQUEST")
    assert missing["field"] == "header:X-GitHub-Delivery"
    # Envoy makes one of two, with a comma: an id that nobody sent.
    twice = [("X-GitHub-Delivery", unique("delivery")), ("X-GitHub-Delivery", unique("delivery")), *headers[1:]]
    before = len(site.application.seen)
    told = problem(site.gateway.send("POST", "/hooks/github", twice, b"{}"), 400, "INVALID_REQUEST")
    assert told["field"] == "header:X-GitHub-Delivery"
    assert len(site.application.seen) == before


def test_alerts_whose_key_is_made_of_the_body(site: Site, home: Path) -> None:
    sell, buy = b"sell " + unique("alert").encode(), b"buy " + unique("alert").encode()
    text = [("Content-Type", "text/plain")]
    if site.kind.sees_body:
        answers = [site.gateway.send("POST", "/signals", text, body) for body in (sell, buy, sell)]
        assert [answer.status_code for answer in answers[:2]] == [201, 201]
        assert answers[2].status_code in (site.kind.replayed_ok or 409, 409)
        assert Counter(seen.body for seen in site.application.seen if seen.body in (sell, buy)) == {sell: 1, buy: 1}
        return
    edits = {NGINX: ("source=github", "source=tradingview"), CADDY: ("hooks github", "hooks tradingview")}
    with another(site, home, edit=lambda config: config.replace(*edits[site.kind])) as gateway:
        told = problem(gateway.send("POST", "/hooks/github", text, sell), 400, "INVALID_REQUEST")
        assert told["field"] == "body"
        assert "tradingview" in told["detail"]
    assert not [seen for seen in site.application.seen if seen.body == sell]


@pytest.mark.parametrize("site", [ENVOY, TRAEFIK], indirect=True, ids=str)
def test_a_body_that_is_too_large_to_ask_about(site: Site) -> None:
    body = b"x" * (1024 * 1024 + 1)
    answer = site.gateway.send("POST", "/signals", [("Content-Type", "text/plain")], body)
    assert answer.status_code == (413 if site.kind is ENVOY else 401)
    assert not (site.kind is TRAEFIK and answer.content)
    assert not [seen for seen in site.application.seen if seen.body == body]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_the_documented_commands_leave_is_no_change_of_the_tree(kind: Kind, tmp_path: Path) -> None:
    """The files that a server and a gateway write where docs/gateways.md starts them are in ``.gitignore``."""
    root = Path(__file__).resolve().parents[2]
    shutil.copy(root / ".gitignore", tmp_path)
    folder = Path(shutil.copytree(root / "examples" / "gateways", tmp_path / "examples" / "gateways"))
    own = {"server.toml", "server.log", f"{kind}/log"}
    git = [installed("git", "git"), "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], env=environment(), check=True)
    subprocess.run([*git, "add", "."], env=environment(), check=True)
    with (
        Server(folder, SERVER_CONFIG, data_dir="") as server,
        Application() as application,
        gateway_running(kind, folder / kind.name, server.http, application.address) as gateway,
    ):
        # More than is kept in memory.
        gateway.send("POST", "/elsewhere", body=b"x" * 100_000)
        status = [*git, "status", "--porcelain", "--untracked-files=all"]
        said = subprocess.run(status, env=environment(), check=True, capture_output=True, text=True).stdout
    found = {line[3:].removeprefix("examples/gateways/") for line in said.splitlines() if line.startswith("??")}
    assert own <= found, "what the test itself leaves is seen"
    assert {name for name in found - own if not name.startswith("caddy/caddy/")} == set()
    assert (folder / "data").is_dir()
    if kind is NGINX:
        assert (folder / "nginx" / "nginx.pid").exists()
        assert (folder / "nginx" / "proxy").is_dir()
