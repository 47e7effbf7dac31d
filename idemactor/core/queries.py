"""What operators ask a shard beside the state table, and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from idemactor.core.record import Incident, Record
from idemactor.core.tally import Tally, TallyKey


@dataclass(frozen=True, slots=True)
class ListRecords:
    """One page of a shard's records, in order of id. ``state`` is pending, in_doubt, committed or None for all."""

    tenant: str
    namespace: str
    state: str | None
    contested: bool | None
    older_than_ms: int | None
    after_id: int
    limit: int


@dataclass(frozen=True, slots=True)
class ListIncidents:
    """One page of a shard's incidents, in order of arrival."""

    tenant: str
    namespace: str
    after_id: int
    limit: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """An operator has seen an incident: it need not be kept."""

    tenant: str
    namespace: str
    incident_id: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """What only the shard's file knows, for the metrics."""


Query = ListRecords | ListIncidents | Acknowledge | Inspect

QUERIES: Final = frozenset(get_args(Query))
"""Their types: every command is asked whether it is one."""


@dataclass(frozen=True, slots=True)
class RecordsPage:
    """Records as time has them, in order of id.

    Attributes:
        rows: (id, key, record).
        next_after: Where the next page begins; None where the shard holds no further ones.
    """

    rows: tuple[tuple[int, str, Record], ...]
    next_after: int | None


@dataclass(frozen=True, slots=True)
class IncidentsPage:
    """Incidents in order of arrival.

    Attributes:
        rows: (id, incident).
        next_after: Where the next page begins; None where the shard holds no further ones.
    """

    rows: tuple[tuple[int, Incident], ...]
    next_after: int | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The incident is no longer kept."""


@dataclass(frozen=True, slots=True)
class NoSuchIncident:
    """There is none of that id (any more) for this tenant and namespace."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """How a shard stands.

    Attributes:
        tallies: Its counts.
        oldest_pending_at: When its oldest pending attempt began, milliseconds since the epoch; None: nothing pends.
        alarm_backlog: Alarms that are overdue.
        waiting: Callers that wait.
    """

    tallies: tuple[tuple[TallyKey, Tally], ...]
    oldest_pending_at: int | None
    alarm_backlog: int
    waiting: int


Finding = RecordsPage | IncidentsPage | Acknowledged | NoSuchIncident | Inspected
