"""Tokens rise strictly with every grant of a key, and no two grants of a shard ever share one."""

from __future__ import annotations

from idemactor.core.replies import Reserved
from tests.sim.history import History


def check(history: History) -> list[str]:
    """Tokens that were given out twice, or that are not above those of grants that were answered before."""
    found = []
    owners: dict[tuple[int, int], tuple[object, str]] = {}
    for identity, ops in history.by_key().items():
        grants = [(op, op.reply) for op in ops if isinstance(op.reply, Reserved)]
        for op, grant in grants:
            owner = (identity, grant.operation_id)
            if owners.setdefault((op.shard, grant.token), owner) != owner:
                found.append(f"token given twice: {op}")
            for earlier, before in grants:
                happened_before = earlier.answered is not None and earlier.answered < op.sent
                if happened_before and not grant.repeated and grant.token <= before.token:
                    found.append(f"token not above: {earlier} then {op}")
    return found
