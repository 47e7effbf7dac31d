"""Connecting, as every generator does it."""

from __future__ import annotations

import socket

CONNECT_S = 10.0


def connect(address: str) -> socket.socket:
    """A connection to ``host:port`` or ``unix:/path``, ready for small writes."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(CONNECT_S)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, port = address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), CONNECT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
