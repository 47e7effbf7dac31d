"""What operators and the metrics ask of a shard's file, answered by the shard's own task behind its output gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from idemactor.core.delivery import Kind
from idemactor.core.ledger import Ledger, Ticket, visible
from idemactor.core.policy import Policy
from idemactor.core.queries import (
    IncidentsPage,
    Inspected,
    ListIncidents,
    ListRecords,
    ListStuck,
    RecordsPage,
    StuckPage,
    StuckRecord,
)
from idemactor.core.record import Entry, Incident
from idemactor.core.stuck import why_stuck
from idemactor.core.tally import TallyKey
from idemactor.storage.base import Engine, RecordQuery, StateFilter
from idemactor.wire.fields import Dialect
from idemactor.wire.outcomes import cost_in

T = TypeVar("T", bound=Ticket)

STUCK_LOOKED_AT: Final = 1_000
"""How many records of each kind a shard looks at, of each namespace, for those that are stuck longest: those whose keys
came first."""


INCIDENTS_AT_A_TIME: Final = 16
"""How many incidents are read at a time: how large what they prove is, is known only then."""


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
    """One page of incidents; it ends before the one, but for the first, whose outcome is more than it may hold."""
    dialect = Dialect.JSON if query.as_json else Dialect.MSGPACK
    rows: list[tuple[int, Incident]] = []
    after_id, size = query.after_id, 0
    while len(rows) < query.limit:
        limit = min(INCIDENTS_AT_A_TIME, query.limit - len(rows))
        stored = await engine.list_incidents(query.tenant, query.namespace, after_id, limit)
        for row in stored:
            outcome = row.incident.outcome
            more = 0 if outcome is None else cost_in(dialect, outcome)
            if rows and size + more > query.bytes_max:
                return IncidentsPage(tuple(rows), after_id, size)
            rows.append((row.id, row.incident))
            after_id, size = row.id, size + more
        if len(stored) < limit:
            return IncidentsPage(tuple(rows), None, size)
    return IncidentsPage(tuple(rows), after_id, size)


async def _first_incidents(engine: Engine, query: ListStuck, namespace: str) -> list[tuple[int, Incident]]:
    """The first incidents of a namespace, without what they prove: nobody is told that of what is stuck."""
    found: list[tuple[int, Incident]] = []
    after_id = 0
    while len(found) < query.limit:
        limit = min(INCIDENTS_AT_A_TIME, query.limit - len(found))
        stored = await engine.list_incidents(query.tenant, namespace, after_id, limit)
        found += [(row.id, row.incident.emptied()) for row in stored]
        if len(stored) < limit:
            break
        after_id = stored[-1].id
    return found


async def list_stuck(
    engine: Engine, ledger: Ledger[T], query: ListStuck, policies: Mapping[str, Policy], now: int
) -> StuckPage:
    """What is stuck in the shard, over all the namespaces that are asked about."""
    records: dict[int, StuckRecord] = {}
    incidents: list[tuple[int, Incident]] = []
    more = False
    for namespace in query.namespaces:
        if (query.tenant, namespace) not in ledger.tallies:
            continue
        found = await _unsettled(engine, ledger, query, namespace, now)
        more = more or len(found) >= STUCK_LOOKED_AT
        for entry in found:
            record = _stuck(ledger, entry, policies[namespace], now, query.older_than_ms)
            if record is not None:
                records[entry.id] = record
        incidents += await _first_incidents(engine, query, namespace)
    longest = sorted(records.values(), key=lambda each: each.since)
    counts = ledger.outbox.counts(now)
    mine = (each for each in counts if each.tenant == query.tenant and each.namespace in query.namespaces)
    unfetched = tuple(each for each in mine if each.kind is Kind.EVENT and _is_old(each.oldest_at, query, now))
    more = more or len(longest) > query.limit or len(incidents) >= query.limit
    return StuckPage(tuple(longest[: query.limit]), tuple(incidents[: query.limit]), unfetched, more)


async def _unsettled(engine: Engine, ledger: Ledger[T], query: ListStuck, namespace: str, now: int) -> list[Entry]:
    """What may be stuck: what pends for long and what is in doubt, by the order of the keys, and the first intents."""
    before_ms = now - query.older_than_ms
    pending = RecordQuery(query.tenant, namespace, now, StateFilter.PENDING, reserved_before_ms=before_ms)
    in_doubt = RecordQuery(query.tenant, namespace, now, StateFilter.IN_DOUBT)
    found = [entry for asked in (pending, in_doubt) for entry in await engine.list_records(asked, 0, STUCK_LOOKED_AT)]
    # An intent that is tried again and again began its latest attempt a moment ago.
    ids = ledger.outbox.oldest_intents(query.tenant, namespace, STUCK_LOOKED_AT)
    loaded = await engine.load_ids(ids) if ids else {}
    return [*found, *loaded.values()]


def _stuck(ledger: Ledger[T], entry: Entry, policy: Policy, now: int, older_than_ms: int) -> StuckRecord | None:
    shown = visible(entry, policy, now)
    if shown is None or shown.record is None:
        return None
    found = why_stuck(shown.record, now, older_than_ms)
    if found is None:
        return None
    why, since = found
    return StuckRecord(entry.identity, why.value, since, shown.record, ledger.waiting_for(entry.identity))


def _is_old(at: int | None, query: ListStuck, now: int) -> bool:
    return at is not None and now - at > query.older_than_ms


async def inspect(engine: Engine, ledger: Ledger[T], alarm_backlog: int, now: int) -> Inspected:
    """How the shard stands."""
    copied = tuple((key, replace(tally)) for key, tally in ledger.tallies.items())
    doubted = [key for key, tally in copied if tally.in_doubt > 0]
    oldest = [(key, at) for key in doubted if (at := await _oldest_in_doubt_at(engine, key, now)) is not None]
    pending_at = await engine.oldest_pending_at()
    return Inspected(copied, pending_at, alarm_backlog, ledger.waiting, ledger.outbox.counts(now), tuple(oldest))


async def _oldest_in_doubt_at(engine: Engine, key: TallyKey, now: int) -> int | None:
    """When the first attempt began of those that are in doubt, by the order of the keys' first grants."""
    found = await engine.list_records(RecordQuery(key[0], key[1], now, StateFilter.IN_DOUBT), 0, 1)
    return next((entry.record.reserved_at for entry in found if entry.record is not None), None)
