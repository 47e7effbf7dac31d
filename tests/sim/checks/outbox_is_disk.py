"""The outbox in memory equals the disk: whenever a batch is durable, the index is what a restart would make of it."""

from __future__ import annotations

from idemactor.core.delivery import Kind
from idemactor.core.ledger import Ledger
from idemactor.core.outbox import Outbox
from idemactor.core.outboxes import Outboxes
from idemactor.shard.mailbox import Envelope
from idemactor.storage.base import Open
from idemactor.storage.memory import MemoryDisk

Shown = dict[int, tuple[object, int, str | None, int | None]]


def differences(ledger: Ledger[Envelope], disk: MemoryDisk, rows: list[Open], now_ms: int) -> list[str]:
    """What differs after a batch; ``rows`` is what the engine would bring back."""
    fresh = Outboxes(ledger.outbox._policies)
    there = rows if ledger.outbox.recalled else [row for row in rows if row.seq <= ledger.outbox.complete_to]
    for row in there:
        fresh.recall(
            row.kind, row.id, row.tenant, row.namespace, row.seq, row.order_key, row.state, row.lease_expires_at,
            row.due_at,
            row.holder,
        )  # fmt: skip
    memory, stored = _content(ledger.outbox._index), _content(fresh._index)
    found = [f"in memory alone: {memory[n]}" for n in memory.keys() - stored.keys()]
    found += [f"on disk alone: {stored[n]}" for n in stored.keys() - memory.keys()]
    for number in memory.keys() & stored.keys():
        ours, theirs = memory[number], stored[number]
        # An event that was shown to somebody is hidden in memory alone; what time has ended is passed over there.
        hidden = ours[0] is not None and (number < 0 or (ours[3] is None and _is_over(disk, number, now_ms)))
        if ours[:3] != theirs[:3] or (not hidden and ours[3] != theirs[3]):
            found.append(f"memory's outbox is not the disk's: {ours} / {theirs}")
    found += [f"no intent: {row}" for row in rows if row.kind is Kind.INTENT and row.id not in disk.intents]
    return found


def _content(index: Outbox) -> Shown:
    return {n: (item.queue.key, item.seq, item.order_key, item.due_at) for n, item in index._by_id.items()}


def _is_over(disk: MemoryDisk, entry_id: int, now_ms: int) -> bool:
    record = disk.entries[entry_id].record
    return record is not None and record.delivery is not None and record.delivery.deliver_until <= now_ms
