"""Connections to upstreams: TCP, Unix sockets, TLS."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import trio

from idemactor.gateway.proxy.routes import Origin

Connect = Callable[[Origin], Awaitable[trio.abc.Stream]]
"""Opens a connection. Raises: OSError, or what TLS has to say."""


def connector(origin: Origin) -> Connect:
    """How to connect to ``origin``."""
    return _TlsConnect() if origin.scheme == "https" else connect_plain


async def connect_plain(origin: Origin) -> trio.abc.Stream:
    """A TCP or Unix connection. Raises: OSError."""
    if origin.unix:
        return await trio.open_unix_socket(origin.unix)
    return await trio.open_tcp_stream(origin.host, origin.port)


class _TlsConnect:
    """TLS with the authorities that the machine trusts; the handshake is part of connecting."""

    def __init__(self) -> None:
        self._context = ssl.create_default_context()

    async def __call__(self, origin: Origin) -> trio.abc.Stream:
        transport = await connect_plain(origin)
        stream = trio.SSLStream(transport, self._context, server_hostname=origin.host, https_compatible=True)
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream
