"""Requests as their senders sent them."""

from __future__ import annotations

from idemactor.wire.sourced import RawRequest

__all__ = ["RawRequest"]
