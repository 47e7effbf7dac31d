"""Why an upstream was not reached: what somebody can act on, and no address."""

from __future__ import annotations

import errno
import json
import socket
import ssl

import pytest
import trio
from trio.testing import MockClock

from idemactor.gateway.proxy.connecting import connect_plain, why_not
from idemactor.gateway.proxy.routes import Origin
from tests.gateway.proxy.rig import proxying


def chained(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def not_accepted(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "made up")
    error.verify_message = message
    return error


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "made up")
    error.reason = reason
    return error


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Error connecting to ('10.0.0.1', 80): Connection refused")
CASES = [
    (REFUSED, "connection refused"),
    (chained(OSError("all attempts failed"), ExceptionGroup("all", [REFUSED])), "connection refused"),
    (
        chained(OSError("all failed"), ExceptionGroup("all", [REFUSED, OSError(errno.ENETUNREACH, "x"), REFUSED])),
        "connection refused, network is unreachable",
    ),
    (socket.gaierror(socket.EAI_NONAME, "x"), "its name was not found"),
    (socket.gaierror(socket.EAI_NODATA, "x"), "its name was not found"),
    (socket.gaierror(socket.EAI_AGAIN, "x"), "its name could not be looked up"),
    (FileNotFoundError(errno.ENOENT, "x"), "there is no such socket"),
    (PermissionError(errno.EACCES, "x"), "permission denied"),
    (TimeoutError(errno.ETIMEDOUT, "x"), "connection timed out"),
    (chained(trio.BrokenResourceError(), ConnectionResetError(errno.ECONNRESET, "x")), "it closed the connection"),
    (trio.BrokenResourceError(), "it closed the connection"),
    (chained(trio.BrokenResourceError(), tls_error("WRONG_VERSION_NUMBER")), "TLS failed (wrong version number)"),
    (
        chained(
            trio.BrokenResourceError(), not_accepted("Hostname mismatch, certificate is not valid for 'a.internal'.")
        ),
        "its certificate is not accepted (Hostname mismatch)",
    ),
    (OSError("AF_UNIX path too long"), "OSError"),
    (RuntimeError("secret"), "RuntimeError"),
]


@pytest.mark.parametrize(("error", "said"), CASES, ids=[said for _, said in CASES])
def test_why_there_is_no_connection(error: Exception, said: str) -> None:
    assert why_not(error) == said


def test_causes_that_go_round_come_to_an_end() -> None:
    one, other = RuntimeError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert why_not(one) in ("RuntimeError", "ValueError")


async def test_what_connecting_really_raises_is_understood() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    for origin, said in (
        (Origin("http", "127.0.0.1", port), "connection refused"),
        (Origin("http", "", 0, "/nowhere/at/all.sock"), "there is no such socket"),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - Which one it is depends on the way.
            await connect_plain(origin)
        assert why_not(caught.value) == said


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_client_is_told_why(autojump_clock: MockClock, method: str) -> None:
    async with proxying(autojump_clock) as proxy:
        proxy.upstream.refuses = True
        told = await proxy.call(method)
        assert told.status == 502
        said = "Nothing was sent: the upstream cannot be reached: connection refused."
        assert json.loads(told.body)["detail"] == said
