"""Sockets that doors listen on, TCP and Unix, with TLS or without."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import ssl
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from idemactor.errors import StartError

UNIX_SOCKET_MODE: Final = 0o660
"""Owner and group may connect; everyone else is kept out by the file system."""
BACKLOG_CONNECTIONS: Final = 1024
"""How many connections the kernel holds ready for us; it cuts this to ``net.core.somaxconn``."""
STALE_PROBE_MS: Final = 1_000
"""How long a Unix socket that is in the way has to answer before it counts as in use."""

_UNIX_PREFIX: Final = "unix:"
_MS_PER_S: Final = 1_000


class SocketListener:
    """A listening TCP or Unix socket, with TLS or without."""

    def __init__(self, sock: trio.socket.SocketType, address: str, tls: ssl.SSLContext | None) -> None:
        self._socket = sock
        self._address = address
        self._tls = tls
        self._unix_file = _identity(address)

    @property
    def address(self) -> str:
        return self._address

    def keep_file(self) -> None:
        """Closing leaves a Unix socket's file where it is: it is that of another process, which bound it."""
        self._unix_file = None

    async def accept(self) -> trio.abc.Stream:
        try:
            sock, _ = await self._socket.accept()
        except OSError:
            if self._socket.fileno() < 0:
                # A connection had come, and the listener was closed before its turn: that is no broken socket.
                raise trio.ClosedResourceError("the listener is closed") from None
            raise
        stream = trio.SocketStream(sock)
        if self._tls is None:
            return stream
        # HTTP clients close without TLS's own goodbye; "compatible" takes that for an ordinary end.
        return trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)

    def close(self) -> None:
        if trio.lowlevel.in_trio_run():
            self._socket.close()
        elif self._socket.fileno() >= 0:
            # A process that binds for others has no loop that it would have to tell.
            os.close(self._socket.detach())
        if self._unix_file is not None and _identity(self._address) == self._unix_file:
            # Only our own file: whoever bound the path anew after us keeps theirs.
            Path(self._address.removeprefix(_UNIX_PREFIX)).unlink(missing_ok=True)
        self._unix_file = None


def server_ssl_context(
    cert: Path, key: Path, client_ca: Path | None = None, *, alpn: Sequence[str] = ()
) -> ssl.SSLContext:
    """TLS for a door: TLS 1.2 or newer, with client certificates demanded where ``client_ca`` is given.

    Args:
        cert: The certificate chain, PEM.
        key: Its private key, PEM, without a passphrase.
        client_ca: The authority that client certificates must come from, PEM.
        alpn: The protocols to offer, the most wanted first (RFC 7301).

    Raises:
        StartError: A file cannot be read or used; the message names it.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        _prove_readable(cert, key)
        # The empty passphrase keeps OpenSSL from asking for one on the terminal.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"cannot use the TLS certificate {cert} with the key {key}: {error}") from error
    if client_ca is not None:
        try:
            _prove_readable(client_ca)
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise StartError(f"cannot use the client authorities in {client_ca}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def _prove_readable(*files: Path) -> None:
    """OpenSSL says that a file is not there, and not which; Raises: OSError: one cannot be read, and it says which."""
    for file in files:
        file.open("rb").close()


def bind_listeners(
    addresses: Iterable[str], tls: ssl.SSLContext | None = None, inherited: Mapping[str, socket.socket] | None = None
) -> list[SocketListener]:
    """Binds every address, in order; if one fails, those already bound are closed again.

    Args:
        addresses: ``host:port``, ``[v6]:port`` or ``unix:path``. Port 0 takes any free port; a name stands for its
            first IPv4 address.
        tls: What the connections must speak; None for plain ones.
        inherited: Sockets by address that listen already, since a service manager made them: they are taken over, and
            their files are its own.

    Raises:
        StartError: An address cannot be bound; the message names it and the way out.
    """
    with contextlib.ExitStack() as undo:
        listeners = []
        for address in addresses:
            ours = None if inherited is None else inherited.get(address)
            listener = _bind(address, tls) if ours is None else _adopt(ours, address, tls)
            undo.callback(listener.close)
            listeners.append(listener)
        undo.pop_all()
        return listeners


def worker_file(address: str, worker: int) -> str:
    """Beside a ``unix:path`` the address at which one worker alone accepts."""
    return f"{address}.{worker}"


def remove_worker_files(addresses: Iterable[str], workers: Iterable[int]) -> None:
    """Remove the socket files that workers left who are no more; what somebody listens on stays, and what is no socket.

    Only for the owner of the data directory whose addresses these are: an earlier server of it, of more workers, was
    killed.
    """
    bound = [address for address in addresses if address.startswith(_UNIX_PREFIX)]
    for address, worker in itertools.product(bound, workers):
        with contextlib.suppress(OSError):
            _remove_stale(Path(worker_file(address, worker).removeprefix(_UNIX_PREFIX)))


def _adopt(sock: socket.socket, address: str, tls: ssl.SSLContext | None) -> SocketListener:
    listener = SocketListener(trio.socket.from_stdlib_socket(sock), address, tls)
    listener.keep_file()
    return listener


def _bind(address: str, tls: ssl.SSLContext | None) -> SocketListener:
    try:
        if address.startswith(_UNIX_PREFIX):
            sock, bound = _bind_unix(Path(address.removeprefix(_UNIX_PREFIX))), address
        else:
            sock, bound = _bind_tcp(address)
    except (OSError, ValueError, OverflowError) as error:
        raise StartError(f"cannot listen on {address}: {error}") from error
    sock.setblocking(False)
    return SocketListener(trio.socket.from_stdlib_socket(sock), bound, tls)


def _bind_tcp(address: str) -> tuple[socket.socket, str]:
    host, _, port = address.rpartition(":")
    is_v6 = host.startswith("[") and host.endswith("]")
    sock = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
    with _closed_on_error(sock):
        # Without it a restart has to wait until the last connections of the old process have aged away.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:
            # So that "[::]:80" and "0.0.0.0:80" can stand side by side, whatever the machine's default is.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host.strip("[]"), int(port)))
        sock.listen(BACKLOG_CONNECTIONS)
        bound_host, bound_port = sock.getsockname()[:2]
    return sock, f"[{bound_host}]:{bound_port}" if is_v6 else f"{bound_host}:{bound_port}"


def _bind_unix(path: Path) -> socket.socket:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _closed_on_error(sock):
        sock.bind(str(path))
        # Nobody can connect before listen(), so the mode is never too wide for a moment, and the umask stays alone.
        path.chmod(UNIX_SOCKET_MODE)
        sock.listen(BACKLOG_CONNECTIONS)
    return sock


def _remove_stale(path: Path) -> None:
    """Removes the socket file of a server that is gone.

    Raises:
        OSError: The path is no socket, or somebody listens on it.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "the path is taken by a file that is no socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(STALE_PROBE_MS / _MS_PER_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass
    raise OSError(errno.EADDRINUSE, "another process listens on it; stop that one first")


@contextlib.contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def _identity(address: str) -> tuple[int, int] | None:
    """Device and inode of a Unix socket's file; None for TCP, or when the file is gone."""
    if not address.startswith(_UNIX_PREFIX):
        return None
    try:
        found = os.lstat(address.removeprefix(_UNIX_PREFIX))
    except OSError:
        return None
    return found.st_dev, found.st_ino
