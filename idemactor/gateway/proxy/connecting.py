"""Connections to upstreams: TCP, Unix sockets, TLS."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import trio

from idemactor.gateway.proxy.routes import Origin

CAUSES_DEPTH_MAX: Final = 8
"""How far down a cause is looked for."""

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


def why_not(error: Exception) -> str:
    """Why there is no connection to an upstream, in a few words for its clients: they name no address.

    Args:
        error: What connecting raised.
    """
    return ", ".join(dict.fromkeys(_cause(found) for found in _roots(error, CAUSES_DEPTH_MAX)))


def _roots(error: BaseException, depth: int) -> Iterator[BaseException]:
    """The first causes: trio says "all attempts failed", or "broken", and chains why, for each address of a name."""
    if depth and isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _roots(one, depth - 1)
    elif depth and error.__cause__ is not None:
        yield from _roots(error.__cause__, depth - 1)
    else:
        yield error


def _cause(error: BaseException) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            # What follows a comma names the host.
            return f"its certificate is not accepted ({error.verify_message.partition(',')[0]})"
        case ssl.SSLError():
            return f"TLS failed ({(error.reason or 'no reason given').replace('_', ' ').lower()})"
        case ConnectionRefusedError():
            return "connection refused"
        case socket.gaierror(errno=socket.EAI_NONAME | socket.EAI_NODATA):
            return "its name was not found"
        case socket.gaierror():
            return "its name could not be looked up"
        case FileNotFoundError():
            return "there is no such socket"
        case ConnectionError() | trio.BrokenResourceError() | trio.ClosedResourceError():
            return "it closed the connection"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case _:
            return type(error).__name__


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
