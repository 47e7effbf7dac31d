"""Relays and reconcilers without sockets, files or real time: shards and a destination of the test's own.

``FakeShards`` knows of the state table what dispatch needs of it: claiming, leases that lapse, and endings by token. It
checks on the way what must never happen: that an attempt is settled twice, or a lane overtaken.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import trio

from idemactor.core.commands import Command, Commit, Doubt, Postpone, Release, Resolve, Verdict
from idemactor.core.delivery import Delivery, Intent, Kind
from idemactor.core.keys import Identity
from idemactor.core.queries import (
    Behind,
    Heads,
    Inspect,
    Inspected,
    ListRecords,
    Query,
    RecordsPage,
    Take,
    Taken,
    TakenIntent,
    Turn,
)
from idemactor.core.record import Outcome, Record, State
from idemactor.core.replies import Committed, Doubted, Postponed, Released, Stale, Unavailable
from idemactor.core.tally import Tally
from idemactor.dispatch.destination import Destination, Endpoint
from idemactor.dispatch.office import DispatchOffice
from idemactor.dispatch.relay import Surroundings
from idemactor.gateway.proxy.routes import Origin
from idemactor.observability.observer import Observer
from idemactor.server.tracing import Tracing
from idemactor.shard.mailbox import Answer
from tests.gateway.proxy.rig import Behaviour, FakeUpstream, Received

ORIGIN = Origin("http", "upstream.test", 80)
ENDPOINT = Endpoint(ORIGIN, "/orders")
EPOCH_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
OPEN = ("queued", "delivering", "in_doubt")


def now_ms() -> int:
    return EPOCH_MS + int(trio.current_time() * 1000)


@dataclass(slots=True, eq=False)
class Row:
    """One dispatched operation."""

    identity: Identity
    shard: int
    operation_id: str
    seq: int
    order_key: str | None
    accepted_at: int
    due_at: int
    deliver_until: int
    intent: Intent
    state: str = "queued"
    token: int = 0
    attempt: int = 0
    lease_until: int = 0
    reserved_at: int = 0
    perhaps_sent: bool = False
    outcome: Outcome | None = None
    reasons: list[str | None] = field(default_factory=list)
    plain: bool = False

    @property
    def turn(self) -> Turn:
        assert self.order_key is not None
        return Turn(self.identity.tenant, Kind.INTENT, self.order_key, self.seq)


class FakeBell:
    """Rings for everybody."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self.is_broken = False

    def ring(self) -> None:
        if not self.is_broken:
            self._event.set()

    async def wait(self, _namespace: str, timeout_s: float) -> None:
        with trio.move_on_after(timeout_s):
            await self._event.wait()
        self._event = trio.Event()


class FakeShards:
    """Shards that keep their rows in a list; a command takes ``latency_s``.

    Attributes:
        recognised: Whether the destination recognises ids.
        silent: The shards that cannot answer.
        slow: Those that take a second for it.
        is_dead: The process was killed: what it would still say is not heard.
    """

    def __init__(self, count: int, *, recognised: bool, bell: FakeBell) -> None:
        self._count = count
        self.is_dead = False
        self.recognised = recognised
        self.bell = bell
        self.rows: list[Row] = []
        self.silent: set[int] = set()
        self.slow: set[int] = set()
        self.latency_s = 0.001
        self.told: list[Command] = []
        self.asked: list[tuple[int, Query]] = []
        self._tokens = itertools.count(1)
        self._seqs = itertools.count(1)

    @property
    def count(self) -> int:
        return self._count

    def add(self, key: str, *, shard: int = 0, order_key: str | None = None, expires_in_ms: int = DAY_MS) -> Row:
        seq = next(self._seqs)
        identity = Identity("default", "orders", key)
        intent = Intent("application/json", f'{{"key": "{key}"}}'.encode(), (("X-Own", "1"),))
        operation_id = f"0190f8f0-0000-7000-8000-{seq:012d}"
        now = now_ms()
        row = Row(identity, shard, operation_id, seq, order_key, now, now, now + expires_in_ms, intent)
        self.rows.append(row)
        self.bell.ring()
        return row

    def row(self, key: str) -> Row:
        return next(row for row in self.rows if row.identity.key == key)

    def states(self) -> dict[str, str]:
        self._lapse()
        return {row.identity.key: row.state for row in self.rows}

    # --------------------------------------------------------------------------------------------------------- queries

    async def ask(self, shard: int, query: Query) -> Answer:
        self.asked.append((shard, query))
        await trio.sleep(1.0 if shard in self.slow else self.latency_s)
        if shard in self.silent:
            return Unavailable(100)
        self._lapse()
        match query:
            case Take():
                return self._take(shard, query)
            case Heads():
                return Behind(tuple(turn for turn in query.turns if self._is_behind(shard, turn)))
            case Inspect():
                tenants = [row.identity.tenant for row in self.rows if row.shard == shard and row.state == "in_doubt"]
                counts = {(one, "orders"): Tally(in_doubt=tenants.count(one)) for one in tenants}
                return Inspected(tuple(counts.items()), None, 0, 0)
            case ListRecords():
                return self._page(shard, query)
            case _:
                raise AssertionError(query)

    def _lapse(self) -> None:
        for row in self.rows:
            if row.state == "delivering" and now_ms() >= row.lease_until:
                row.perhaps_sent = True
                row.state, row.due_at = ("queued", now_ms()) if self.recognised else ("in_doubt", 0)
            if row.state == "queued" and now_ms() >= row.deliver_until:
                row.state = "in_doubt" if row.perhaps_sent else "expired"

    def _is_behind(self, shard: int, turn: Turn) -> bool:
        lane = [row for row in self.rows if row.shard == shard and row.order_key == turn.order_key]
        return any(row.state in OPEN and row.seq < turn.seq for row in lane)

    def _take(self, shard: int, query: Take) -> Taken:
        mine = [row for row in self.rows if row.shard == shard and row.state == "queued"]
        due = sorted((row for row in mine if row.due_at <= now_ms()), key=lambda row: (row.due_at, row.seq))
        taken: list[TakenIntent] = []
        heads: list[Turn] = []
        for row in due:
            if row.order_key is not None:
                if self._is_behind(shard, row.turn):
                    continue
                if row.turn not in query.turns:
                    heads.append(row.turn)
                    continue
            if len(taken) < query.max:
                taken.append(self.claim(row, query.lease_ms))
        later = [row.due_at for row in mine if row.due_at > now_ms()]
        more = len(due) > len(taken)
        return Taken(tuple(taken), (), tuple(heads), min(later, default=None), more)

    def claim(self, row: Row, lease_ms: int) -> TakenIntent:
        """Somebody delivers it from now on."""
        if row.order_key is not None:
            before = [one for one in self.rows if one.order_key == row.order_key and one.seq < row.seq]
            assert not any(one.state in OPEN for one in before), "a lane was overtaken"
        row.state, row.token, row.attempt = "delivering", next(self._tokens), row.attempt + 1
        row.reserved_at, row.lease_until = now_ms(), now_ms() + lease_ms
        return TakenIntent(
            row.identity,
            row.operation_id,
            row.token,
            row.attempt,
            row.accepted_at,
            row.lease_until,
            row.deliver_until,
            row.perhaps_sent,
            row.order_key,
            row.seq,
            row.intent,
        )

    def _page(self, shard: int, query: ListRecords) -> RecordsPage:
        assert query.state == "in_doubt"
        mine = [row for row in self.rows if row.shard == shard and row.identity.tenant == query.tenant]
        rows = [row for row in mine if row.state == "in_doubt" and row.seq > query.after_id]
        some = rows[: query.limit]
        found = tuple((row.seq, row.identity.key, _record(row)) for row in some)
        return RecordsPage(found, some[-1].seq if len(rows) > len(some) else None)

    # -------------------------------------------------------------------------------------------------------- commands

    async def tell(self, command: Command) -> Answer:
        await trio.sleep(self.latency_s)
        if self.is_dead:
            await trio.sleep_forever()
        row = self.row(command.identity.key)
        if row.shard in self.silent:
            return Unavailable(100)
        self._lapse()
        self.told.append(command)
        assert isinstance(command, Commit | Release | Doubt | Postpone | Resolve)
        if command.token != row.token or row.state not in ("delivering", "in_doubt"):
            return Stale(row.attempt)
        answer = self._end(row, command)
        self.bell.ring()
        return answer

    def _end(self, row: Row, command: Commit | Release | Doubt | Postpone | Resolve) -> Answer:
        match command:
            case Commit():
                row.state, row.outcome = ("failed" if command.failed else "succeeded"), command.outcome
                return Committed(0, repeated=False)
            case Resolve(verdict=Verdict.COMMITTED):
                row.state, row.outcome = "succeeded", command.outcome
                return Committed(0, repeated=False)
            case Release() | Resolve():
                row.state = "released"
                return Released(repeated=False)
            case Doubt():
                row.state = "in_doubt"
                row.reasons.append(command.reason)
                return Doubted(repeated=False)
            case Postpone():
                row.perhaps_sent = command.perhaps_sent or (row.perhaps_sent and row.state == "delivering")
                row.state, row.due_at = "queued", command.due_at
                row.reasons.append(command.reason)
                return Postponed(command.due_at)


def _record(row: Row) -> Record:
    delivery = None if row.plain else Delivery(row.seq, row.order_key, None, row.deliver_until, row.perhaps_sent)
    return Record(
        State.DOUBTED,
        row.attempt,
        row.token,
        row.operation_id,
        row.accepted_at,
        row.reserved_at,
        lease_expires_at=row.lease_until,
        delivery=delivery,
    )


class Seen(Observer):
    """Remembers what the relay and the reconciler say."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.breaker: list[str] = []
        self.reconcilings: list[str] = []
        self.in_flight_max = 0

    def delivered(self, namespace: str, result: str) -> None:
        assert namespace == "orders"
        self.results.append(result)

    def deliveries_in_flight(self, namespace: str, count: int) -> None:  # noqa: ARG002
        self.in_flight_max = max(self.in_flight_max, count)

    def breaker_changed(self, namespace: str, state: str) -> None:  # noqa: ARG002
        self.breaker.append(state)

    def reconciled(self, namespace: str, result: str) -> None:  # noqa: ARG002
        self.reconcilings.append(result)


@dataclass(slots=True)
class Rig:
    """An office under test, and its surroundings; ``tries`` are the times at which somebody connected."""

    office: DispatchOffice
    shards: FakeShards
    bell: FakeBell
    upstream: FakeUpstream
    seen: Seen
    tries: list[float]

    @property
    def requests(self) -> list[Received]:
        return self.upstream.requests

    def sent(self) -> list[str]:
        """The operations that requests were about, in order."""
        return [received.header("idempotency-key")[0] for received in self.requests if received.method == "POST"]

    async def until(self, condition: Callable[[], bool], most_s: float = 100_000) -> None:
        """Wait for it, in virtual time."""
        with trio.fail_after(most_s):
            while not condition():  # noqa: ASYNC110
                await trio.sleep(0.05)

    async def until_states(self, *states: str, most_s: float = 100_000) -> None:
        """Wait until every row is in one of them."""
        await self.until(lambda: all(state in states for state in self.shards.states().values()), most_s)


@contextlib.asynccontextmanager
async def running(
    destination: Destination,
    behaviour: Behaviour,
    *,
    shards: int = 1,
    seed: int = 0,
    refuses: bool = False,
    keep: FakeShards | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[Rig]:
    """An office that runs; what is under way in the end is cut off. ``keep`` are the shards of one before it."""
    fake = keep or FakeShards(shards, recognised=destination.downstream_dedups, bell=FakeBell())
    bell, seen = fake.bell, Seen()
    async with trio.open_nursery() as nursery:
        upstream = FakeUpstream(nursery, behaviour, refuses=refuses)
        tries: list[float] = []

        async def connect(origin: Origin) -> trio.abc.Stream:
            tries.append(trio.current_time())
            return await upstream.connect(origin)

        around = Surroundings(fake, bell, seen, now_ms, random.Random(seed).random, tracing)
        office = DispatchOffice({"orders": destination}, around, connect)
        await nursery.start(office.run)
        yield Rig(office, fake, bell, upstream, seen, tries)
        nursery.cancel_scope.cancel()


def answers(status: int = 200, body: bytes = b"{}", *headers: tuple[str, str]) -> Behaviour:
    """A destination that always says the same."""

    async def behave(received: Received) -> None:
        await received.answer(status, body, headers)

    return behave


def destination(**changes: object) -> Destination:
    """One with short times."""
    return replace(Destination(ENDPOINT, timeout_ms=3_000), **changes)  # type: ignore[arg-type]
