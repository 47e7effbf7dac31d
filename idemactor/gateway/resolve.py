"""From a raw request to a key: the order in which a source's rules are tried (contract, 9)."""

from __future__ import annotations

from idemactor.gateway.request import RawRequest
from idemactor.gateway.source import Source
from idemactor.wire.sourced import Resolved, Rule

__all__ = ["Resolved", "Rule", "resolve"]


def resolve(source: Source, request: RawRequest, *, now_ms: int) -> Resolved:
    """The key of ``request`` and what it stands for.

    Args:
        source: Whose request it is.
        request: As it came.
        now_ms: The time, milliseconds since the epoch: for timestamps of signatures and for minutes.

    Raises:
        InvalidRequest: What is required is missing or malformed; ``field`` names it as the source does.
        Unauthorized: The sender has not proved who it is.
    """
    raise NotImplementedError
