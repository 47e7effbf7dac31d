"""Where a door listens: ``host:port``, ``[v6]:port`` or ``unix:path``."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Final

PORT_MAX: Final = 65_535
UNIX_PATH_BYTES_MAX: Final = 107
"""What ``sun_path`` of Linux's ``sockaddr_un`` holds beside its closing zero byte (unix(7))."""

_UNIX_PREFIX: Final = "unix:"
# A label of letters, digits and inner hyphens (RFC 1123, section 2.1).
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP address; ``host`` is without brackets, port 0 means any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Is it out of reach for other machines? Of names, only ``localhost`` is trusted to be."""
        try:
            parsed = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host.lower() == "localhost"
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        return (mapped or parsed).is_loopback

    @property
    def identity(self) -> str | None:
        """Equal for two addresses that cannot both be listened on; None for port 0, which never collides."""
        try:
            host = str(ipaddress.ip_address(self.host))
        except ValueError:
            host = self.host.lower()
        return f"{host} {self.port}" if self.port else None


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket; a relative ``path`` starts at the working directory."""

    path: str

    @property
    def is_loopback(self) -> bool:
        """A Unix socket never leaves the machine."""
        return True

    @property
    def identity(self) -> str | None:
        """The absolute path, so that two spellings of one file are seen to be one."""
        return os.path.abspath(self.path)


Address = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Reads one entry of ``bind``.

    Raises:
        ValueError: It is none; the message says what is wrong with it.
    """
    if text.startswith(_UNIX_PREFIX):
        return _parse_unix(text.removeprefix(_UNIX_PREFIX))
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError('has no port; write "host:port", with port 0 for any free one')
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX):
        raise ValueError(f"has no port from 0 to {PORT_MAX} after its last colon")
    return TcpAddress(_parse_host(host), int(port))


def _parse_unix(path: str) -> UnixAddress:
    if not path or path.endswith("/"):
        raise ValueError("names no file for the socket")
    if "\0" in path:
        raise ValueError("has a zero byte in its path")
    if (size := len(os.fsencode(path))) > UNIX_PATH_BYTES_MAX:
        raise ValueError(f"has a path of {size} bytes, and a socket's may have {UNIX_PATH_BYTES_MAX}")
    return UnixAddress(path)


def _parse_host(host: str) -> str:
    if not host:
        raise ValueError('has no host; "0.0.0.0" is every IPv4 address of the machine, "[::]" every IPv6 one')
    if host.startswith("[") and host.endswith("]"):
        inner = host[1:-1]
        if not _is_ip(inner, 6):
            raise ValueError("has no IPv6 address between its brackets")
        return inner
    if _is_ip(host, 6):
        raise ValueError(f'needs brackets around its IPv6 address: "[{host}]:port"')
    if _is_ip(host, 4) or (_HOST.fullmatch(host) and not host.rpartition(".")[2].isdigit()):
        return host
    raise ValueError("has no valid host before its last colon")


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False
