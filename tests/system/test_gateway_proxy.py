"""The reverse proxy in a real process, in front of an upstream that misbehaves in every way it can."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.system.clients import connect, raw, read_to_end
from tests.system.process import Server, assert_calm, assert_clean, eventually
from tests.system.programs import free_port
from tests.system.upstream import BINARY, MIB, OK, PACKED, Upstream

LEASE_MS = 1_500
DRAIN_MS = 5_000
SLACK_S = 3
"""What a stop takes on a machine that has much else to do, beside what it waits for."""

CONFIG = """
[namespaces.default]
[namespaces.orders]
on_lease_expiry = "hold"
lease_ms = {lease_ms}
[namespaces.mib]
outcome_max_bytes = 1048576

[gateway]
bind = ["127.0.0.1:0", "unix:{home}/gateway.sock"]
body_bytes_max = 8388608

[[gateway.routes]]
prefix = "/orders"
upstream = "{url}"
namespace = "orders"
methods = ["POST", "PATCH", "HEAD"]
timeout_ms = 700

[[gateway.routes]]
prefix = "/soft"
upstream = "{url}"
namespace = "orders"
success = {{ pointer = "/success", equals = true }}

[[gateway.routes]]
prefix = "/patient"
upstream = "{url}"
namespace = "orders"
wait_ms = 20000
timeout_ms = 20000

[[gateway.routes]]
prefix = "/mib"
upstream = "{url}"
namespace = "mib"

[[gateway.routes]]
prefix = "/nobody"
upstream = "http://127.0.0.1:{closed}"
namespace = "orders"
"""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name.lower()]

    @property
    def result(self) -> object:
        return json.loads(self.body).get("result")

    @property
    def replayed(self) -> bool:
        return self.header("Idempotent-Replayed") == ["true"]


@dataclass(slots=True)
class Proxied:
    """A server with a gateway, and its upstream."""

    server: Server
    upstream: Upstream

    @property
    def address(self) -> str:
        return self.server.addresses("gateway")[0]

    def call(self, path: str, key: str, method: str = "POST", body: bytes = b"{}", token: str = "") -> Told:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        headers = ({"Idempotency-Key": key} if key else {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Told(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()


def configured(home: Path, upstream: Upstream) -> Server:
    text = CONFIG.format(home=home, url=upstream.url, closed=free_port(), lease_ms=LEASE_MS)
    return Server(home, text)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    home = tmp_path_factory.mktemp("proxied")
    with Upstream() as upstream, configured(home, upstream) as server:
        yield Proxied(server, upstream)
        assert server.alive
        assert_calm(server)


def test_the_ready_line_names_the_gateway(proxied: Proxied) -> None:
    tcp, unix = proxied.server.addresses("gateway")
    assert tcp.startswith("127.0.0.1:")
    assert unix == f"unix:{proxied.server.home}/gateway.sock"
    # The namespace of one route lets a request through again after a crash, and that is said.
    assert '"gateway_route_retries"' in proxied.server.log
    with connect(unix) as sock:
        sock.sendall(b"GET /orders/unix HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert read_to_end(sock).startswith(b"HTTP/1.1 200 Status\r\n")


@pytest.mark.parametrize("name", ["hang", "hang-body", "cut", "reset", "cut-head", "cut-body"])
def test_no_whole_answer_leaves_in_doubt(proxied: Proxied, name: str) -> None:
    path = f"/orders/{name}"
    first = proxied.call(path, name)
    assert (first.status, first.result) == (409, "in_doubt")
    again = proxied.call(path, name)
    assert (again.status, again.result) == (409, "in_doubt")
    assert proxied.upstream.counts()[path] == 1


@pytest.mark.parametrize("status", [302, 304, 409, 500, 503])
def test_an_answer_that_does_not_say_leaves_in_doubt(proxied: Proxied, status: int) -> None:
    path = f"/orders/{status}"
    assert proxied.call(path, f"s{status}").status == status
    assert proxied.call(path, f"s{status}").result == "in_doubt"
    assert proxied.upstream.counts()[path] == 1


def test_an_answer_that_cannot_be_read_leaves_in_doubt(proxied: Proxied) -> None:
    first = proxied.call("/soft/html", "html")
    assert (first.status, first.body) == (200, b"<html>")
    assert proxied.call("/soft/html", "html").result == "in_doubt"


@pytest.mark.parametrize("path", ["/orders/404", "/orders/422", "/orders/429", "/soft/soft"])
def test_a_refusal_frees_the_key(proxied: Proxied, path: str) -> None:
    for _ in range(2):
        assert not proxied.call(path, path).replayed
    assert proxied.upstream.counts()[path] == 2


def test_a_refused_connection_frees_the_key(proxied: Proxied) -> None:
    for _ in range(2):
        told = proxied.call("/nobody/home", "nobody")
        assert (told.status, told.header("Retry-After")) == (502, ["1"])
    found = proxied.server.http_client().call("get", "orders", key="nobody")
    assert found.status == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/orders/ok", OK),
        ("/soft/gzip", PACKED),
        ("/orders/binary", BINARY),
        ("/mib/mib", MIB),
        ("/orders/204", b""),
        ("/patient/stream", b"tickticktick"),
    ],
)
def test_repeats_are_byte_for_byte(proxied: Proxied, path: str, body: bytes) -> None:
    first, second = proxied.call(path, path), proxied.call(path, path)
    assert (first.body, first.replayed) == (body, False)
    assert "stream" in path or first.header("Set-Cookie") == ["a=1"]
    assert (second.status, second.body, second.replayed, second.header("Set-Cookie")) == (first.status, body, True, [])
    for name in ("Content-Type", "Content-Encoding"):
        assert second.header(name) == first.header(name)
    assert proxied.upstream.counts()[path] == 1


def test_an_answer_too_large_passes_and_blocks(proxied: Proxied) -> None:
    first, second = proxied.call("/orders/large", "large"), proxied.call("/orders/large", "large")
    assert first.body == 3 * MIB
    assert json.loads(second.body)["outcome"] == {"status": 200, "headers": [], "omitted": True}
    assert second.replayed
    assert proxied.upstream.counts()["/orders/large"] == 1


def test_a_stream_comes_as_it_comes(proxied: Proxied) -> None:
    with connect(proxied.address) as sock:
        head = "POST /patient/stream HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {}\r\nContent-Length: 0\r\n"
        began = time.monotonic()
        sock.sendall(head.format("as-it-comes").encode() + b"Connection: close\r\n\r\n")
        assert b"200" in sock.recv(65_536)
        assert time.monotonic() - began < 0.19
        assert read_to_end(sock).endswith(b"0\r\n\r\n")


def test_an_answer_that_was_cut_does_not_look_whole(proxied: Proxied) -> None:
    """An old client has only the end of the connection to go by."""
    with connect(proxied.address) as sock:
        sock.sendall(b"POST /orders/stream HTTP/1.0\r\nIdempotency-Key: old\r\n\r\n")
        received: list[bytes] = []
        with pytest.raises(ConnectionResetError):
            received.extend(iter(lambda: sock.recv(65_536), b""))
        assert received[-1].endswith(b"tick")


def test_a_head_that_is_protected(proxied: Proxied) -> None:
    for replayed in (False, True):
        told = proxied.call("/orders/head", "head", "HEAD", b"")
        assert (told.status, told.body, told.replayed) == (200, b"", replayed)


def test_early_hints_reach_the_client(proxied: Proxied) -> None:
    fields = b"Host: a\r\nIdempotency-Key: h2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    got = raw(proxied.address, b"POST /orders/hints HTTP/1.1\r\n" + fields)
    assert got.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 Status\r\n")


def test_a_large_request_that_is_refused_unread(proxied: Proxied) -> None:
    told = proxied.call("/patient/early", "early", body=b"x" * 8_000_000)
    assert (told.status, told.body) == (413, b"no!")
    # The list of definite failures does not have it: nobody knows.
    assert proxied.call("/patient/early", "early", body=b"x" * 8_000_000).result == "in_doubt"


def test_two_hundred_at_once_are_one_call(proxied: Proxied) -> None:
    with ThreadPoolExecutor(200) as pool:
        told = list(pool.map(lambda _: proxied.call("/patient/slow", "two-hundred"), range(200)))
    assert {(one.status, one.body) for one in told} == {(200, OK)}
    assert sum(one.replayed for one in told) == 199
    assert proxied.upstream.counts()["/patient/slow"] == 1


def test_a_client_that_hangs_up_changes_nothing(proxied: Proxied) -> None:
    with connect(proxied.address) as sock:
        sock.sendall(b"POST /orders/slow HTTP/1.1\r\nHost: a\r\nIdempotency-Key: gone\r\nContent-Length: 2\r\n\r\n{}")
        time.sleep(0.1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    eventually(lambda: proxied.call("/orders/slow", "gone").replayed)
    assert proxied.upstream.counts()["/orders/slow"] == 1


def test_a_client_that_sends_no_more_is_answered(proxied: Proxied) -> None:
    head = b"POST /patient/slow HTTP/1.1\r\nHost: a\r\nIdempotency-Key: half\r\nContent-Length: 2\r\n\r\n{}"
    with connect(proxied.address) as first, connect(proxied.address) as second:
        for sock in (first, second):
            sock.sendall(head)
            sock.shutdown(socket.SHUT_WR)
            time.sleep(0.05)
        told = [read_to_end(sock) for sock in (first, second)]
    assert told[0].startswith(b"HTTP/1.1 200 ")
    assert told[0].endswith(OK)
    # The second hung up while it waited: in flight, unless the first was done within a second.
    assert told[1].startswith((b"HTTP/1.1 409 ", b"HTTP/1.1 200 "))
    assert proxied.call("/patient/slow", "half").replayed


LINE = b"POST /orders/smuggled HTTP/1.1\r\nHost: a\r\n"
BEHIND = b"GET /orders/smuggled HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        LINE + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        LINE + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        LINE + b"Content-Length: 0\r\nX: y\r\n z\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\n\r\n5\nabcde\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcdef\r\n0\r\n\r\n",
        LINE.replace(b"\r\n", b"\n") + b"\n",
        b"GET /nowhere/../orders/smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_smuggling_reaches_nothing(proxied: Proxied, data: bytes) -> None:
    got = raw(proxied.address, data + BEHIND)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert got.count(b"\r\nContent-Length: ") == 1
    assert proxied.upstream.counts()["/orders/smuggled"] == 0


def test_connections_that_break_do_not_reach_others(proxied: Proxied) -> None:
    """Every kind of garbage at once, while honest clients are served."""
    garbage = [
        b"\x00" * 100,
        b"GET",
        b"POST /orders/ok HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
        b"\x16\x03\x01\x00\xa5\x01\x00",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5_000,
    ]
    stop = threading.Event()

    def attack(data: bytes) -> None:
        while not stop.is_set():
            with connect(proxied.address) as sock:
                sock.sendall(data)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    threads = [threading.Thread(target=attack, args=(data,)) for data in garbage]
    for thread in threads:
        thread.start()
    try:
        for number in range(30):
            assert proxied.call("/orders/ok", f"honest-{number}").status == 200
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_metrics_count_and_name_no_key(proxied: Proxied) -> None:
    proxied.call("/orders/ok", "a-key-of-its-own")
    metrics = proxied.server.http_client().get("/metrics").body.decode()
    assert 'idemactor_gateway_verdicts_total{namespace="orders",verdict="in_doubt"}' in metrics
    assert 'idemactor_gateway_answers_total{namespace="orders",result="completed"}' in metrics
    assert "a-key-of-its-own" not in metrics


# ------------------------------------------------------------------------------------------------- servers of their own


def test_two_tenants_have_each_their_own(home: Path) -> None:
    tokens = "".join(
        f'[auth.tokens.{name}]\nsha256 = "{sha256(name.encode()).hexdigest()}"\ntenant = "{name}"\n'
        'namespaces = ["*"]\nrole = "caller"\n'
        for name in ("one", "two")
    )
    with Upstream() as upstream:
        server = configured(home, upstream)
        server.config_path.write_text(server.config_path.read_text() + tokens)
        with server:
            proxied = Proxied(server, upstream)
            for name, replayed in (("one", False), ("two", False), ("one", True), ("two", True)):
                told = proxied.call("/orders/ok", "same", token=name)
                assert (told.status, told.replayed) == (200, replayed)
            assert proxied.call("/orders/ok", "same").status == 401
            assert proxied.call("/orders/ok", "same", token="three").status == 401
            assert len(upstream.requests) == 2


def test_sigterm_brings_what_is_under_way_to_its_end(home: Path) -> None:
    with Upstream(slow_s=1.5) as upstream, configured(home, upstream) as server:
        proxied = Proxied(server, upstream)
        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(proxied.call, "/patient/slow", "busy")
            eventually(lambda: bool(upstream.requests))
            began = time.monotonic()
            server.signal(signal.SIGTERM)
            assert busy.result().body == OK
            assert server.wait() == 0
        assert time.monotonic() - began < 5
        assert_calm(server)
        server.start()
        again = proxied.call("/patient/slow", "busy")
        assert (again.body, again.replayed, len(upstream.requests)) == (OK, True, 1)
        server.kill()
    assert_clean(server.data_dir)


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_tells_everybody_whose_upstream_hangs(home: Path, workers: int) -> None:
    text = f"""
        [server]
        drain_ms = {DRAIN_MS}
        [namespaces.default]
        [namespaces.orders]
        [gateway]
        bind = ["127.0.0.1:0"]
        [[gateway.routes]]
        prefix = "/"
        upstream = "{{url}}"
        namespace = "orders"
        require_key = false
    """
    # Enough keys that every worker has some of its own and some of the others'.
    keys = [f"k{number}" for number in range(8)]
    with (
        Upstream() as upstream,
        Server(home, text.format(url=upstream.url), flags=["--workers", f"{workers}"]) as server,
    ):
        proxied = Proxied(server, upstream)
        with ThreadPoolExecutor(len(keys) + 2) as pool:
            hanging = [pool.submit(proxied.call, "/orders/hang", key) for key in keys]
            unprotected = pool.submit(proxied.call, "/orders/hang", "")
            begun = pool.submit(proxied.call, "/orders/hang-stream", "begun")
            eventually(lambda: len(upstream.requests) == len(keys) + 2)
            began = time.monotonic()
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert time.monotonic() - began < DRAIN_MS / 1_000 + SLACK_S
            told = [one.result() for one in hanging]
            assert {(one.status, one.result) for one in told} == {(409, "in_doubt")}
            assert unprotected.result().status == 504
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                begun.result()
        assert "drain_cut_off" not in server.log
        assert_calm(server)
        server.start()
        with server.http_client() as client:
            found = [client.call("get", "orders", key=key).members["record"] for key in [*keys, "begun"]]
        assert {record["state"] for record in found} == {"in_doubt"}
        ids = [record["operation_id"] for record in found]
        assert [json.loads(one.body)["operation_id"] for one in told] == ids[: len(keys)]
        assert server.terminate() == 0
    assert_clean(server.data_dir)


def test_sigterm_does_not_wait_for_a_request_that_never_comes(home: Path) -> None:
    with Upstream() as upstream, configured(home, upstream) as server:
        head = b"POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n"
        with connect(Proxied(server, upstream).address) as in_head, connect(server.addresses("gateway")[0]) as in_body:
            in_head.sendall(head[:20])
            in_body.sendall(head + b"x")
            time.sleep(0.3)
            began = time.monotonic()
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert time.monotonic() - began < 8
            assert all(read_to_end(one).startswith(b"HTTP/1.1 503 ") for one in (in_head, in_body))
        assert_calm(server)
        assert not upstream.requests


def test_a_crash_in_the_middle_leaves_in_doubt(home: Path) -> None:
    with Upstream(slow_s=5) as upstream, configured(home, upstream) as server:
        proxied = Proxied(server, upstream)
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(proxied.call, "/patient/slow", "crash")
            eventually(lambda: bool(upstream.requests))
            server.kill()
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                lost.result()
        server.start()
        upstream.slow_s = 0
        assert proxied.call("/orders/slow", "crash", body=b"x").status == 422
        eventually(lambda: proxied.call("/patient/slow", "crash").result == "in_doubt", timeout_s=30)
        assert len(upstream.requests) == 1


def test_a_lease_shorter_than_the_upstream_takes_is_kept(home: Path) -> None:
    with Upstream(slow_s=3 * LEASE_MS / 1_000) as upstream, configured(home, upstream) as server:
        proxied = Proxied(server, upstream)
        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(proxied.call, "/patient/slow", "long")
            time.sleep(2 * LEASE_MS / 1_000)
            found = server.http_client().call("get", "orders", key="long")
            assert found.members["record"]["state"] == "pending"
            assert busy.result().body == OK


CERT, KEY = (Path(__file__).parent / "http_hostile" / name for name in ("test_only_cert.pem", "test_only_key.pem"))

TLS_CONFIG = """
[gateway]
bind = ["127.0.0.1:0"]
tls_cert = "{cert}"
tls_key = "{key}"
[[gateway.routes]]
prefix = "/orders"
upstream = "https://localhost:{port}"
namespace = "default"
preserve_host = false
"""


class Orders(BaseHTTPRequestHandler):
    """Says what it was sent."""

    def do_POST(self) -> None:
        body = json.dumps({"host": self.headers["Host"], "proto": self.headers["X-Forwarded-Proto"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - The name is the base class's.
        pass


@pytest.mark.parametrize("trusts", [True, False])
def test_tls_on_both_sides(home: Path, trusts: bool) -> None:
    """An upstream that cannot show a certificate that the machine trusts is sent nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERT, KEY)
    with HTTPServer(("127.0.0.1", 0), Orders) as upstream:
        upstream.socket = context.wrap_socket(upstream.socket, server_side=True)
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        text = TLS_CONFIG.format(cert=CERT, key=KEY, port=upstream.server_port)
        with Server(home, text, extra={"SSL_CERT_FILE": str(CERT)} if trusts else {}) as server:
            client = ssl.create_default_context(cafile=str(CERT))
            connection = http.client.HTTPSConnection(server.addresses("gateway")[0], timeout=10, context=client)
            for replayed in (None, "true"):
                connection.request("POST", "/orders", b"{}", {"Idempotency-Key": "tls"})
                answer = connection.getresponse()
                body = answer.read()
                if not trusts:
                    assert answer.status == 502
                    continue
                assert json.loads(body) == {"host": f"localhost:{upstream.server_port}", "proto": "https"}
                assert answer.getheader("Idempotent-Replayed") == replayed
            connection.close()
            assert_calm(server)
        upstream.shutdown()
