"""A server that was told to stop grants nothing any more, and lets nobody wait."""

from __future__ import annotations

from idemactor.core.replies import Accepted, Dispatched, Reserved
from tests.sim.history import History


def check(history: History, told: int, *, waits: bool) -> list[str]:
    """What came after it was told so, by the place ``told`` in the order of things; ``waits``: some still may."""
    found = []
    for op in history.ops:
        if op.answered is None and op.sent < told and not op.closed and not waits:
            found.append(f"waits although the server was told to stop: {op}")
        granted = isinstance(op.reply, Reserved | Accepted | Dispatched) and not op.reply.repeated
        if granted and op.sent > told:
            found.append(f"granted although the server was told to stop: {op}")
    return found
