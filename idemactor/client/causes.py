"""Why nobody could be reached, in a few words for people. No I/O."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import anyio

from idemactor.client.errors import ProtocolViolation

DEPTH_MAX: Final = 8
"""How far down a cause is looked for."""


def cause_of(trouble: BaseException | None) -> str:
    """What ``trouble``, from making or using a connection, means; None: there is a connection, and no answer came."""
    if trouble is None:
        return "connected, but no answer came"
    found = _root(trouble)
    match found:
        case ProtocolViolation():
            return "what answers there speaks no idemactor RPC: is it another port, or TLS?"
        case ssl.SSLError():
            return f"TLS failed: {found}"
        case ConnectionRefusedError():
            return "connection refused"
        case socket.gaierror():
            return f"the name does not resolve: {found.strerror}"
        case TimeoutError():
            return "timed out"
        case FileNotFoundError():
            return "there is no such socket"
        case anyio.EndOfStream() | anyio.ClosedResourceError() | anyio.BrokenResourceError() | ConnectionError():
            return "the connection was closed"
        case OSError(strerror=str(said)):
            return said
        case _:
            return str(found) or type(found).__name__


def _root(error: BaseException) -> BaseException:
    """The first cause: what connects says "all attempts failed", or "broken", and chains why."""
    for _ in range(DEPTH_MAX):
        if isinstance(error, ProtocolViolation | ssl.SSLError):
            break
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif error.__cause__ is not None:
            error = error.__cause__
        else:
            break
    return error
