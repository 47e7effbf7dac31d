"""An acknowledged commit blocks until its expiry and replays the same bytes, whatever happens in between."""

from __future__ import annotations

from idemactor.core.commands import Accept, Commit, Forget
from idemactor.core.record import Outcome, State
from idemactor.core.replies import Accepted, Committed, Completed, Found, Reserved, Unknown
from tests.sim.history import History, Op


def check(history: History) -> list[str]:
    """Where a committed key let somebody in, was unknown, or told two outcomes of one operation."""
    found = []
    for ops in history.by_key().values():
        found += _outcomes(ops)
        for done in ops:
            if isinstance(done.reply, Committed | Accepted):
                found += _blocks(done, done.reply.expires_at, ops)
    return found


def _blocks(done: Op, expires_at: int, ops: list[Op]) -> list[str]:
    """Requests that were sent after the answer and decided before the expiry have to see the commit."""
    assert done.answered is not None
    found = []
    for op in ops:
        if op.sent < done.answered or op.at is None or op.at >= expires_at:
            continue
        if any(isinstance(each.command, Forget) and not each.idle and _between(done, each, op) for each in ops):
            continue
        granted = isinstance(op.reply, Reserved | Accepted) and not op.reply.repeated
        forgotten = isinstance(op.reply, Unknown)
        reopened = isinstance(op.reply, Found) and op.reply.record.state is not State.COMMITTED
        if granted or forgotten or reopened:
            found.append(f"committed until {expires_at} by {done}, and yet {op}")
    return found


def _between(done: Op, forget: Op, op: Op) -> bool:
    """Whether an operator may have had it forgotten in between."""
    return forget.until > done.sent and (op.answered is None or forget.sent < op.answered)


def _outcomes(ops: list[Op]) -> list[str]:
    told: dict[str, set[Outcome | None]] = {}
    for op in ops:
        if isinstance(op.reply, Completed):
            told.setdefault(op.reply.operation_id, set()).add(op.reply.outcome)
        elif isinstance(op.reply, Found) and op.reply.record.state is State.COMMITTED:
            told.setdefault(op.reply.record.operation_id, set()).add(op.reply.record.outcome)
        elif isinstance(op.reply, Accepted) and isinstance(op.command, Accept) and not op.reply.repeated:
            told.setdefault(op.reply.operation_id, set()).add(_kept(op.command.outcome, op))
    for op in ops:
        if isinstance(op.command, Commit) and isinstance(op.reply, Committed) and not op.reply.repeated:
            for operation_id in _operations_of(op.command.token, ops):
                told.setdefault(operation_id, set()).add(_kept(op.command.outcome, op))
    return [f"operation {name} has told {outcomes}" for name, outcomes in told.items() if len(outcomes) > 1]


def _kept(outcome: Outcome | None, op: Op) -> Outcome | None:
    return outcome.within(op.policy.outcome_max_bytes) if outcome else None


def _operations_of(token: int, ops: list[Op]) -> set[str]:
    return {op.reply.operation_id for op in ops if isinstance(op.reply, Reserved) and op.reply.token == token}
