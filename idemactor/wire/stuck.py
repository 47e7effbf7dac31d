"""What is stuck, as operators ask for it and see it (contract, 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from idemactor.core.limits import LIST_LIMIT_DEFAULT
from idemactor.core.queries import OutboxCount, StuckPage, StuckRecord
from idemactor.core.record import Incident
from idemactor.core.stuck import Why
from idemactor.wire.calls import STUCK, STUCK_OLDER_THAN_MS_DEFAULT
from idemactor.wire.fields import Dialect
from idemactor.wire.listings import incident_id
from idemactor.wire.requests import Members, members_of

_MEMBERS: Final = {dialect: Members(STUCK, dialect) for dialect in Dialect}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for.

    Attributes:
        older_than_ms: For how long something pends or waits to be delivered before it counts.
        limit: At most so many.
    """

    older_than_ms: int
    limit: int


def stuck_from(members: Mapping[str, object], dialect: Dialect) -> Asked:
    """Raises: InvalidRequest: A member is unknown or impossible; ``field`` names it."""
    values = members_of(_MEMBERS[dialect], members)
    older_than_ms = values.get("older_than_ms", STUCK_OLDER_THAN_MS_DEFAULT)
    return Asked(older_than_ms, values.get("limit", LIST_LIMIT_DEFAULT))


def stuck_body(
    pages: Sequence[StuckPage | None], asked: Asked, now: int, destinations: Mapping[str, str]
) -> dict[str, object]:
    """The members of the answer.

    Args:
        pages: What each shard said, in order; None: nothing in time.
        asked: What was asked for.
        now: Milliseconds since the epoch.
        destinations: Where the intents of a namespace are delivered to.
    """
    found: list[tuple[int, dict[str, object]]] = []
    counts: list[OutboxCount] = []
    for shard, page in enumerate(pages):
        if page is None:
            continue
        found += [(each.since, _record(each, now, destinations)) for each in page.records]
        found += [(each.at, _incident(incident_id(shard, number), each, now)) for number, each in page.incidents]
        counts += page.unfetched
    found.sort(key=lambda each: each[0])
    more = len(found) > asked.limit or any(page is not None and page.more for page in pages)
    return {
        "stuck": [members for _, members in found[: asked.limit]],
        "unfetched": _unfetched(counts),
        "more": more,
        "silent_shards": [shard for shard, page in enumerate(pages) if page is None],
    }


def _record(stuck: StuckRecord, now: int, destinations: Mapping[str, str]) -> dict[str, object]:
    record, delivery = stuck.record, stuck.record.delivery
    return {
        "why": stuck.why,
        "namespace": stuck.identity.namespace,
        "key": stuck.identity.key,
        "operation_id": record.operation_id,
        "attempt": record.attempt,
        "token": record.token,
        "holder": record.holder,
        "since": stuck.since,
        "for_ms": max(0, now - stuck.since),
        "lease_expires_at": record.lease_expires_at,
        "waiting": stuck.waiting,
        "contested": record.contested,
        "reason": record.reason,
        "destination": None if delivery is None else destinations.get(stuck.identity.namespace),
        "due_at": None if delivery is None else delivery.due_at,
        "incident": None,
        "present_token": None,
    }


def _incident(number: str, incident: Incident, now: int) -> dict[str, object]:
    return {
        "why": Why.INCIDENT.value,
        "namespace": incident.identity.namespace,
        "key": incident.identity.key,
        "operation_id": incident.operation_id,
        "attempt": None,
        "token": incident.token,
        "holder": None,
        "since": incident.at,
        "for_ms": max(0, now - incident.at),
        "lease_expires_at": None,
        "waiting": 0,
        "contested": True,
        "reason": None,
        "destination": None,
        "due_at": None,
        "incident": number,
        "present_token": incident.present_token,
    }


def _unfetched(counts: Sequence[OutboxCount]) -> list[dict[str, object]]:
    """By namespace, over all shards."""
    entries: dict[str, int] = {}
    since: dict[str, int] = {}
    for count in counts:
        if count.oldest_at is not None:
            entries[count.namespace] = entries.get(count.namespace, 0) + count.entries
            since[count.namespace] = min(count.oldest_at, since.get(count.namespace, count.oldest_at))
    return [{"namespace": each, "entries": entries[each], "since": since[each]} for each in sorted(entries)]
