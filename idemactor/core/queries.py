"""What operators ask a shard beside the state table, and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from idemactor.core.delivery import Event, Intent, Kind
from idemactor.core.keys import Identity
from idemactor.core.limits import INCIDENTS_BYTES_MAX
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
    """One page of a shard's incidents, in order of arrival.

    Attributes:
        bytes_max: No other follows where their outcomes would be more than that together, as they will be sent.
        as_json: Whether they will be sent as JSON.
    """

    tenant: str
    namespace: str
    after_id: int
    limit: int
    bytes_max: int = INCIDENTS_BYTES_MAX
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """An operator has seen an incident: it need not be kept."""

    tenant: str
    namespace: str
    incident_id: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """What only the shard's file knows, for the metrics."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An entry of the outbox that has an order to keep: its place in the line of its ``order_key``."""

    tenant: str
    kind: Kind
    order_key: str
    seq: int


@dataclass(frozen=True, slots=True)
class Take:
    """Claim what is due in a shard's outbox, to deliver it.

    What has an order to keep is claimed only where ``turns`` names it: the caller has found out from all shards that
    nothing stands before it (``Heads``).

    Attributes:
        tenant: Whose; None: everybody's, in turn.
        kinds: Which ones.
        max: At most so many.
        lease_ms: How long the taker may be at it before it is shown to somebody else.
        holder: Who takes, for people.
        behind: Heads of this shard that have something before them in another one: they are set aside.
    """

    namespace: str
    tenant: str | None
    kinds: tuple[Kind, ...]
    max: int
    lease_ms: int
    holder: str
    turns: tuple[Turn, ...] = ()
    behind: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Heads:
    """Which of ``turns`` have something before them in this shard's lines?"""

    namespace: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The head of these lines ended in another shard: what was set aside for it may be first now."""

    namespace: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class FindOperation:
    """Whether this shard has the dispatched operation of that id, and under which key."""

    tenant: str
    namespace: str
    operation_id: str


@dataclass(frozen=True, slots=True)
class ListStuck:
    """What of a tenant's is stuck in a shard, see ``core/stuck.py``; at most ``limit`` of it, the longest first."""

    tenant: str
    namespaces: tuple[str, ...]
    older_than_ms: int
    limit: int


Query = ListRecords | ListIncidents | ListStuck | Acknowledge | Inspect | Take | Heads | Moved | FindOperation

QUERIES: Final = frozenset(get_args(Query))
"""Their types: every command is asked whether it is one."""

BYSTANDERS: Final = frozenset({Inspect, Take, Heads, Moved})
"""Queries that a shard can answer while it sleeps, since it does so only with an empty outbox; nor do they keep it
awake."""


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
        outcome_bytes: Their outcomes together, as they will be sent.
    """

    rows: tuple[tuple[int, Incident], ...]
    next_after: int | None
    outcome_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StuckRecord:
    """A record that is stuck.

    Attributes:
        why: The word of ``stuck.Why``.
        since: Milliseconds since the epoch.
        record: As time has it, its outcome left out.
        waiting: How many callers wait for its key.
    """

    identity: Identity
    why: str
    since: int
    record: Record
    waiting: int


@dataclass(frozen=True, slots=True)
class StuckPage:
    """What is stuck in a shard.

    Attributes:
        records: The longest first.
        incidents: (id, incident), in order of arrival.
        unfetched: Events that nobody has fetched, by namespace.
        more: Whether there is, or may be, more of it.
    """

    records: tuple[StuckRecord, ...]
    incidents: tuple[tuple[int, Incident], ...]
    unfetched: tuple[OutboxCount, ...]
    more: bool


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
        oldest_in_doubt_at: By tenant and namespace, when the attempt began that is longest in doubt, milliseconds since
            the epoch; those that have none are left out.
    """

    tallies: tuple[tuple[TallyKey, Tally], ...]
    oldest_pending_at: int | None
    alarm_backlog: int
    waiting: int
    outbox: tuple[OutboxCount, ...] = ()
    oldest_in_doubt_at: tuple[tuple[TallyKey, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OutboxCount:
    """What of a tenant's waits in a shard's outbox, what is being delivered and what blocks its line in doubt included.

    Attributes:
        entries: How many.
        oldest_at: Since when the one is wanted that waits longest, milliseconds since the epoch: since it was accepted,
            or its time came; None: none is wanted yet.
    """

    tenant: str
    namespace: str
    kind: Kind
    entries: int
    oldest_at: int | None


@dataclass(frozen=True, slots=True)
class TakenIntent:
    """An intent to be delivered by whoever took it.

    Attributes:
        token: The attempt's fencing token: what became of it is told with this.
        perhaps_sent: Whether an earlier attempt may have reached the destination.
    """

    identity: Identity
    operation_id: str
    token: int
    attempt: int
    accepted_at: int
    lease_expires_at: int
    deliver_until: int
    perhaps_sent: bool
    order_key: str | None
    seq: int
    intent: Intent


@dataclass(frozen=True, slots=True)
class TakenEvent:
    """An event shown to whoever took it, until ``lease_expires_at``; ``attempt`` counts since the shard was loaded."""

    event: Event
    attempt: int
    lease_expires_at: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What was claimed.

    Attributes:
        intents: In order of ``seq``.
        events: In order of ``seq``.
        heads: What is due, heads its line in this shard, and was not named in the question's ``turns``.
        next_at: When something else will be due, milliseconds since the epoch; None: nothing that waits for time alone.
        more: Whether something else is due already.
    """

    intents: tuple[TakenIntent, ...]
    events: tuple[TakenEvent, ...]
    heads: tuple[Turn, ...]
    next_at: int | None
    more: bool


@dataclass(frozen=True, slots=True)
class Behind:
    """Those turns that have something before them."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Noted:
    """The shard has heard it."""


@dataclass(frozen=True, slots=True)
class OperationAt:
    """The key of the operation that was looked for; None: this shard has none."""

    identity: Identity | None


Finding = (
    RecordsPage
    | IncidentsPage
    | StuckPage
    | Acknowledged
    | NoSuchIncident
    | Inspected
    | Taken
    | Behind
    | Noted
    | OperationAt
)
