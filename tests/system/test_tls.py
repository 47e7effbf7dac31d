"""TLS and mutual TLS on every door of a real server, with certificates that are made here, good ones and bad ones."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgpack
import pytest
import trustme

from tests.system.clients import connect, frame
from tests.system.process import Server, assert_calm

HTTP_ASKED: Final = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
RPC_ASKED: Final = frame(1, "ping", {})
DOORS: Final = ("http", "rpc", "gateway")
ROUTE: Final = """
[gateway]
bind = ["127.0.0.1:0"]
[[gateway.routes]]
prefix = "/orders"
upstream = "http://127.0.0.1:9"
namespace = "default"
"""
"""Nothing is asked for below it: where there is no route the proxy itself says so."""


class Pki:
    """An authority that the server trusts, one that it does not, and what they have issued, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.stranger = trustme.CA(), trustme.CA()
        self.folder = folder
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        self.issued = {
            "server": self.authority.issue_cert("localhost", "127.0.0.1"),
            "client": self.authority.issue_cert("client@test"),
            "stranger": self.stranger.issue_cert("client@test"),
            "expired": self.authority.issue_cert("client@test", not_after=long_ago),
        }
        for name, cert in self.issued.items():
            cert.private_key_pem.write_to_path(folder / f"{name}.key")
            for index, blob in enumerate(cert.cert_chain_pems):
                blob.write_to_path(folder / f"{name}.pem", append=index > 0)

    def toml(self, door: str, *, mutual: bool) -> str:
        lines = [f"[{door}]", f"tls_cert = '{self.folder}/server.pem'", f"tls_key = '{self.folder}/server.key'"]
        return "\n".join([*lines, *([f"client_ca = '{self.ca}'"] if mutual else []), ""])

    def client(self, shown: str | None = None, *, trusting: trustme.CA | None = None) -> ssl.SSLContext:
        """A client that shows a certificate, or none."""
        context = ssl.create_default_context()
        (trusting or self.authority).configure_trust(context)
        if shown is not None:
            context.load_cert_chain(self.folder / f"{shown}.pem", self.folder / f"{shown}.key")
        return context


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module", params=[False, True], ids=["tls", "mutual"])
def serving(
    request: pytest.FixtureRequest, pki: Pki, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, bool]]:
    mutual: bool = request.param
    config = "".join(pki.toml(door, mutual=mutual) for door in DOORS[:2]) + "[namespaces.default]\n"
    config += ROUTE.replace("[gateway]\n", pki.toml("gateway", mutual=mutual))
    with Server(tmp_path_factory.mktemp("tls"), config) as server:
        yield server, mutual
        assert server.alive
        assert_calm(server)


def address_of(server: Server, door: str) -> str:
    return server.addresses(door)[0]


def ask(server: Server, door: str, context: ssl.SSLContext, name: str = "localhost") -> bool:
    """Whether a door answers. Raises: OSError: It does not, or its certificate is not trusted."""
    address = address_of(server, door)
    with connect(address) as plain, context.wrap_socket(plain, server_hostname=name) as sock:
        sock.sendall(RPC_ASKED if door == "rpc" else HTTP_ASKED)
        said = sock.recv(65_536)
    if door == "gateway":
        return said.startswith(b"HTTP/1.1 404")
    if door == "http":
        return said.startswith(b"HTTP/1.1 200")
    return bool(said) and msgpack.unpackb(said) == [1, 1, None, {"result": "pong"}]


@pytest.mark.parametrize("door", DOORS)
def test_who_is_trusted_is_served(serving: tuple[Server, bool], door: str, pki: Pki) -> None:
    server, _ = serving
    assert ask(server, door, pki.client("client"))
    assert ask(server, door, pki.client("client"), "127.0.0.1")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("shown", [None, "stranger", "expired"])
def test_who_shows_no_good_certificate(serving: tuple[Server, bool], door: str, shown: str | None, pki: Pki) -> None:
    server, mutual = serving
    if mutual:
        # TLS 1.3 tells the client only when it reads.
        with contextlib.suppress(OSError):
            assert not ask(server, door, pki.client(shown))
    else:
        assert ask(server, door, pki.client(shown))
    assert ask(server, door, pki.client("client"))


@pytest.mark.parametrize("door", DOORS)
def test_who_trusts_another_authority_or_another_name_does_not_speak_to_it(
    serving: tuple[Server, bool], door: str, pki: Pki
) -> None:
    server, _ = serving
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(server, door, pki.client("client", trusting=pki.stranger))
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(server, door, pki.client("client"), "elsewhere.test")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_versions_that_are_broken_are_not_spoken(
    serving: tuple[Server, bool], door: str, version: ssl.TLSVersion, pki: Pki
) -> None:
    server, _ = serving
    old = pki.client("client")
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = version
    with pytest.raises(OSError, match=r"(?i)alert|version|protocol|reset|eof"):
        ask(server, door, old)


@pytest.mark.parametrize("door", DOORS)
def test_noise_and_silence_during_the_handshake_cost_nobody_else(
    serving: tuple[Server, bool], door: str, pki: Pki
) -> None:
    server, _ = serving
    address = address_of(server, door)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(address)) for _ in range(50)]
        for sock in silent[::2]:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        for sock in silent[1::2]:
            sock.sendall(HTTP_ASKED)
            with contextlib.suppress(ConnectionError):
                assert b"HTTP/1.1" not in sock.recv(1_000)
        assert ask(server, door, pki.client("client"))
        for sock in silent:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert ask(server, door, pki.client("client"))
