"""No key is held twice while a lease runs, by what the server answered and in the server's own time."""

from __future__ import annotations

from collections.abc import Sequence

from idemactor.core.commands import Commit, Extend, Forget, Release, Resolve
from idemactor.core.replies import Accepted, Extended, Reserved
from tests.sim.history import History, Op


def check(history: History) -> list[str]:
    """Every grant that was told to somebody while an earlier holder, told so too, still had its lease."""
    found = []
    for ops in history.by_key().values():
        grants = [op for op in ops if isinstance(op.reply, Reserved) and not op.reply.repeated]
        accepted = [op for op in ops if isinstance(op.reply, Accepted) and not op.reply.repeated]
        for held in grants:
            for other in (*grants, *accepted):
                if other is not held and _overlaps(held, other, ops):
                    found.append(f"held twice: {held} and {other}")
    return found


def _overlaps(held: Op, other: Op, ops: Sequence[Op]) -> bool:
    """Whether ``other`` was let in within the lease of ``held``, which nobody had ended or shortened."""
    assert isinstance(held.reply, Reserved)
    assert held.answered is not None
    assert held.at is not None
    assert other.at is not None
    assert other.answered is not None
    later = other.reply.token > held.reply.token if isinstance(other.reply, Reserved) else other.sent > held.answered
    if not later:
        return False
    ends = [held.reply.lease_expires_at]
    for op in ops:
        if isinstance(op.command, Forget) and op.command.force and op.sent < other.answered:
            return False
        if op.sent > other.answered or getattr(op.command, "token", None) != held.reply.token:
            continue
        # An ending counts from when it is sent: whether it had happened when the answer was lost, nobody knows.
        if isinstance(op.command, Commit | Release | Resolve):
            return False
        if isinstance(op.command, Extend):
            if not isinstance(op.reply, Extended):
                return False
            ends.append(op.reply.lease_expires_at)
    return other.at < min(ends)
