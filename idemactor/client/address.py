"""Where a server is, ``host:port``, ``[v6]:port`` or ``unix:/path``, and how to get there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, assert_never

import anyio
from anyio.abc import ByteStream

_UNIX: Final = "unix:"
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a Unix socket."""

    path: str


Address = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """The address that ``text`` names.

    Raises:
        ValueError: It names none; the message says what one looks like.
    """
    if text.startswith(_UNIX):
        if path := text.removeprefix(_UNIX):
            return UnixAddress(path)
    else:
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        well_formed = colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX
        if well_formed and (bracketed or ":" not in host):
            return TcpAddress(host, int(port))
    raise ValueError(f"{text!r} is no address: it is host:port, [v6]:port or unix:/path")


async def dial(address: Address, tls: ssl.SSLContext | None) -> ByteStream:
    """A connection to ``address``.

    Raises:
        OSError: There is none to be had.
    """
    match address:
        case UnixAddress():
            return await anyio.connect_unix(address.path)
        case TcpAddress() if tls is None:
            return await anyio.connect_tcp(address.host, address.port)
        case TcpAddress():
            # The frames themselves say where they end: a connection that is cut loses no half of anything.
            return await anyio.connect_tcp(address.host, address.port, ssl_context=tls, tls_standard_compatible=False)
        case _:
            assert_never(address)
