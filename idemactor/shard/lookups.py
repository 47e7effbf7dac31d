"""What operators and the metrics ask of a shard's file, answered by the shard's own task behind its output gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from idemactor.core.ledger import Ledger, Ticket, visible
from idemactor.core.policy import Policy
from idemactor.core.queries import IncidentsPage, Inspected, ListIncidents, ListRecords, RecordsPage
from idemactor.core.tally import TallyKey
from idemactor.storage.base import Engine, RecordQuery, StateFilter

T = TypeVar("T", bound=Ticket)


async def list_records(engine: Engine, query: ListRecords, policies: Mapping[str, Policy], now: int) -> RecordsPage:
    """One page of records as time has them at ``now``, milliseconds since the epoch."""
    wanted = RecordQuery(
        tenant=query.tenant,
        namespace=query.namespace,
        now_ms=now,
        state=StateFilter(query.state) if query.state else None,
        contested=query.contested,
        reserved_before_ms=None if query.older_than_ms is None else now - query.older_than_ms,
    )
    entries = await engine.list_records(wanted, query.after_id, query.limit)
    policy = policies[query.namespace]
    shown = [visible(entry, policy, now) for entry in entries]
    rows = tuple((e.id, e.identity.key, e.record) for e in shown if e is not None and e.record is not None)
    return RecordsPage(rows, entries[-1].id if len(entries) == query.limit else None)


async def list_incidents(engine: Engine, query: ListIncidents) -> IncidentsPage:
    """One page of incidents."""
    stored = await engine.list_incidents(query.tenant, query.namespace, query.after_id, query.limit)
    rows = tuple((row.id, row.incident) for row in stored)
    return IncidentsPage(rows, stored[-1].id if len(stored) == query.limit else None)


async def inspect(engine: Engine, ledger: Ledger[T], alarm_backlog: int, now: int) -> Inspected:
    """How the shard stands."""
    copied = tuple((key, replace(tally)) for key, tally in ledger.tallies.items())
    doubted = [key for key, tally in copied if tally.in_doubt > 0]
    oldest = [(key, at) for key in doubted if (at := await _oldest_in_doubt_at(engine, key, now)) is not None]
    pending_at = await engine.oldest_pending_at()
    return Inspected(copied, pending_at, alarm_backlog, ledger.waiting, ledger.outbox.counts(), tuple(oldest))


async def _oldest_in_doubt_at(engine: Engine, key: TallyKey, now: int) -> int | None:
    """When the first attempt began of those that are in doubt, by the order of the keys' first grants."""
    found = await engine.list_records(RecordQuery(key[0], key[1], now, StateFilter.IN_DOUBT), 0, 1)
    return next((entry.record.reserved_at for entry in found if entry.record is not None), None)
