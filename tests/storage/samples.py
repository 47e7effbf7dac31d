"""Random batches that a shard could write, and what is left of them: for every engine's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from idemactor.core.delivery import Delivery, Ending, Event, Intent, NewEvent
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.ids import uuid7
from idemactor.core.keys import Identity
from idemactor.core.record import EarlierToken, Entry, Incident, Outcome, Record, State, Tombstone
from idemactor.core.tally import Tally, TallyKey
from idemactor.storage.base import Batch, Engine, Open, Opened, StoredIncident
from idemactor.storage.memory import MemoryDisk

NOW: Final = 1_700_000_000_000

_TEXTS: Final = ("", "x", "worker-1", "größer", "日本語", "🦀", "a:b:c", "'; DROP TABLE records --", "nul\x00inside")
FIELDS: Final = tuple(text for text in _TEXTS if text and "\x00" not in text)
"""What a header field can be made of."""
NAMES: Final = ("x", "worker-1", "X_Own")
"""What a field of an intent can be called."""


def operation(number: int) -> str:
    """An operation's id, another one for each number."""
    return uuid7(NOW, number)


def pending(entry_id: int, identity: Identity, **changes: object) -> Entry:
    """An entry with a plain pending record; its fields may be overridden."""
    fields: dict[str, object] = {
        "state": State.PENDING,
        "attempt": 1,
        "token": entry_id,
        "operation_id": operation(entry_id),
        "first_seen_at": NOW,
        "reserved_at": NOW,
        "lease_expires_at": NOW + 1_000,
    }
    return Entry(entry_id, identity, Record(**(fields | changes)), None, NOW + 1_000)  # type: ignore[arg-type]


def committed(entry_id: int, identity: Identity, **changes: object) -> Entry:
    """An entry with a plain committed record; its fields may be overridden."""
    fields: dict[str, object] = {
        "state": State.COMMITTED,
        "lease_expires_at": None,
        "committed_at": NOW,
        "expires_at": NOW + 2_000,
        "outcome": Outcome(200, (), b"done"),
    }
    return pending(entry_id, identity, **(fields | changes))


_SEQ: Final = 1_000_000
"""Where deliveries of a ``Writer`` begin in line, behind all of its events: nothing has the place of another."""
INTENT: Final = Intent("application/json", b'{"amount": 1}', (("x-trace", "1"),))


def dispatched(entry_id: int, identity: Identity, **changes: object) -> Entry:
    """An entry whose operation waits to be delivered; its fields may be overridden."""
    fields: dict[str, object] = {
        "attempt": 0,
        "lease_expires_at": None,
        "delivery": Delivery(100 + entry_id, None, NOW, NOW + 9_000),
    }
    return pending(entry_id, identity, **(fields | changes))


def event(seq: int, identity: Identity | None = None, **content: object) -> Event:
    """An event, most of it the usual."""
    fields: dict[str, object] = {"content_type": "text/plain", "body": b"done"}
    what = NewEvent(**(fields | content))  # type: ignore[arg-type]
    return Event(seq, identity or name("k"), f"{operation(seq)}.1", operation(seq), NOW, what)


def name(key: str, namespace: str = "trade", tenant: str = "default") -> Identity:
    """An identity, most of it the usual."""
    return Identity(tenant, namespace, key)


def outcome(rng: Random, texts: Sequence[str] = _TEXTS) -> Outcome:
    """Any outcome, its headers made of ``texts``."""
    if rng.random() < 0.2:
        return Outcome(rng.randrange(100, 600), omitted=True)
    headers = tuple((rng.choice(texts), rng.choice(texts)) for _ in range(rng.randrange(3)))
    body = rng.randbytes(rng.choice((0, 1, 40, 6_000)))
    return Outcome(rng.randrange(100, 600), headers, body)


def _maybe(rng: Random, value: str | int) -> str | int | None:
    return value if rng.random() < 0.5 else None


def record(rng: Random, token: int, now: int) -> Record:
    """Any record that makes sense."""
    state = rng.choice(tuple(State))
    done = state is State.COMMITTED
    values: dict[str, object] = {
        "request_id": _maybe(rng, rng.choice(_TEXTS)),
        "lease_expires_at": None if done else now + rng.randrange(1_000),
        "fingerprint": Fingerprint(rng.choice(_TEXTS), "v1") if rng.random() < 0.5 else None,
        "holder": _maybe(rng, rng.choice(_TEXTS)),
        "ttl_ms": _maybe(rng, 5_000),
        "window_ms": _maybe(rng, 6_000),
        "unresolved_expires_at": None if done else _maybe(rng, now + 9_000),
        "committed_at": now if done else None,
        "expires_at": now + rng.randrange(2_000) if done else None,
        "accepted": done and rng.random() < 0.5,
        "contested": rng.random() < 0.2,
        "reason": _maybe(rng, rng.choice(_TEXTS)),
        "outcome": outcome(rng) if done and rng.random() < 0.7 else None,
        "earlier": tuple(EarlierToken(t, rng.random() < 0.5) for t in range(1, rng.randrange(1, 5))),
    }
    if rng.random() < 0.3:
        values["delivery"] = delivery(rng, state, token, now)
        if state is State.PENDING and rng.random() < 0.5:
            values["lease_expires_at"] = None
    fixed = (state, rng.randrange(1, 9), token, operation(token), now - rng.randrange(50), now - rng.randrange(50))
    return Record(*fixed, **values)  # type: ignore[arg-type]


def delivery(rng: Random, state: State, seq: int, now: int) -> Delivery:
    """Any delivery of a record of that state."""
    done = state is State.COMMITTED
    order_key = rng.choice(_TEXTS) if rng.random() < 0.5 else None
    ending = rng.choice((Ending.SUCCEEDED, Ending.FAILED, Ending.EXPIRED)) if done else None
    due_at = None if done or rng.random() < 0.3 else now + rng.randrange(500)
    return Delivery(_SEQ + seq, order_key, due_at, now + rng.randrange(9_000), rng.random() < 0.5, ending)


def intent(rng: Random, texts: Sequence[str] = _TEXTS, names: Sequence[str] = _TEXTS) -> Intent:
    """Any intent, its type and its headers made of ``texts``, those called by ``names``."""
    headers = tuple((rng.choice(names), rng.choice(texts)) for _ in range(rng.randrange(3)))
    return Intent(rng.choice(texts), rng.randbytes(rng.choice((0, 1, 40, 6_000))), headers)


def entry(rng: Random, entry_id: int, identity: Identity, token: int, now: int) -> Entry:
    """Any entry that makes sense."""
    kept = record(rng, token, now) if rng.random() < 0.8 else None
    tombstone = None
    if kept is None or rng.random() < 0.3:
        request_id = None if rng.random() < 0.5 else "request"
        tombstone = Tombstone(
            max(1, token - 1),
            request_id,
            operation(2**70 + token),
            now + rng.randrange(3_000),
            rng.random() < 0.5,
            rng.choice((None, Ending.FAILED, Ending.CANCELLED, Ending.RELEASED)),
        )
    return Entry(entry_id, identity, kept, tombstone, now + rng.randrange(3_000) if rng.random() < 0.8 else None)


@dataclass(slots=True)
class Writer:
    """Makes batches one after the other, as a shard would: ids are tokens, and ascend."""

    rng: Random
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    now: int = NOW
    token: int = 0
    seq: int = 0
    used: set[Identity] = field(default_factory=set)

    def batch(self) -> Batch:
        """The next batch on what ``disk`` holds; it is not applied."""
        rng, disk = self.rng, self.disk
        self.now += rng.randrange(100)
        self.token = max(self.token, disk.last_token)
        batch = Batch(self.now, self.token)
        for entry_id in rng.sample(sorted(disk.entries), min(len(disk.entries), rng.randrange(4))):
            old = disk.entries[entry_id]
            if rng.random() < 0.5:
                batch.deletes.append(old)
            else:
                self.token += 1
                batch.puts.append(entry(rng, old.id, old.identity, self.token, self.now))
        for _ in range(rng.randrange(6)):
            self._put_new(batch)
        self._emptied(batch)
        self._deliveries(batch)
        self._events(batch)
        self._incidents(batch)
        for key in rng.sample((("default", "trade"), ("default", "pay"), ("acme", "trade")), rng.randrange(3)):
            batch.tallies[key] = Tally(*(rng.randrange(3) for _ in range(6)))
        batch.last_token = self.token
        return batch

    def _put_new(self, batch: Batch) -> None:
        rng = self.rng
        identity = Identity(rng.choice(("default", "acme")), rng.choice(("trade", "pay")), f"k{rng.randrange(60)}")
        busy = {e.identity for e in batch.puts}
        gone = {e.identity for e in batch.deletes}
        if identity in busy or (identity in self.disk.ids and identity not in gone):
            return
        self.token += 1
        self.used.add(identity)
        batch.puts.append(entry(rng, self.token, identity, self.token, self.now))

    def _deliveries(self, batch: Batch) -> None:
        """What goes with entries that are dispatched, stay so, are dispatched again, or are not any more."""
        for put in batch.puts:
            old = self.disk.entries.get(put.id)
            before = old is not None and old.record is not None and old.record.delivery is not None
            after = put.record is not None and put.record.delivery is not None
            if after and (not before or self.rng.random() < 0.3):
                batch.intents[put.id] = intent(self.rng)
            if before and (not after or (put.id in batch.intents and self.rng.random() < 0.5)):
                batch.undelivered.append(put.id)

    def _emptied(self, batch: Batch) -> None:
        """Keys that are forgotten, of those that have left anything."""
        held = {each.identity for each in self.disk.events.values()}
        held |= {each.incident.identity for each in self.disk.incidents.values()}
        batch.emptied.extend(self.rng.sample(sorted(held), min(len(held), self.rng.choice((0, 0, 1, 2)))))

    def _events(self, batch: Batch) -> None:
        rng, disk = self.rng, self.disk
        self.seq = max(self.seq, *disk.events, 0)
        for _ in range(rng.randrange(3)):
            self.seq += 1
            headers = ((rng.choice(_TEXTS), rng.choice(_TEXTS)),) * rng.randrange(2)
            order_key = rng.choice((None, *_TEXTS))
            content = NewEvent(rng.choice(_TEXTS), rng.randbytes(rng.choice((0, 40))), headers, order_key)
            identity = Identity("default", rng.choice(("trade", "pay")), rng.choice(_TEXTS))
            batch.events.append(Event(self.seq, identity, f"operation.{self.seq}", "operation", self.now, content))
        waiting = sorted(disk.events.keys() | {each.seq for each in batch.events})
        batch.acked.extend(rng.sample(waiting, min(len(waiting), rng.randrange(3))))

    def _incidents(self, batch: Batch) -> None:
        rng, disk = self.rng, self.disk
        for _ in range(rng.randrange(2)):
            late = outcome(rng) if rng.random() < 0.5 else None
            identity = Identity("default", rng.choice(("trade", "pay")), "late")
            token = rng.randrange(1, self.token + 2)
            batch.incidents.append(Incident(identity, "op", token, rng.choice((None, 7)), self.now, late))
            self.token = max(self.token, token)
        for incident_id in rng.sample(sorted(disk.incidents), min(len(disk.incidents), rng.randrange(2))):
            batch.acknowledged.append(incident_id)


@dataclass(frozen=True, slots=True)
class Picture:
    """All that an engine tells about what it holds."""

    last_token: int
    latest_ms: int
    tallies: dict[TallyKey, Tally]
    entries: dict[Identity, Entry]
    alarms: list[tuple[int, Identity]]
    incidents: list[StoredIncident]
    outbox: list[Open]
    by_id: dict[int, Entry]
    intents: dict[int, Intent]
    events: dict[int, Event]
    operations: dict[str, Identity | None]


async def picture(engine: Engine, opened: Opened, identities: set[Identity]) -> Picture:
    """What an engine that was just opened holds of ``identities``, and in all."""
    incidents: list[StoredIncident] = []
    for namespace in ("pay", "trade"):
        incidents += await engine.list_incidents("default", namespace, 0, 10_000)
    ids = range(opened.last_token + 2)
    by_id = await engine.load_ids(ids)
    return Picture(
        opened.last_token,
        opened.latest_ms,
        opened.tallies,
        await engine.load(sorted(identities)),
        await engine.alarms(10_000),
        incidents,
        await engine.outbox(0, 1_000),
        by_id,
        await engine.load_intents(ids),
        await engine.load_events(range(4 * len(ids) + 100)),
        await operations(engine, by_id),
    )


async def operations(engine: Engine, entries: dict[int, Entry]) -> dict[str, Identity | None]:
    """Whose the operations are that stand in these entries, or stood in one of the same id before."""
    asked = [(*entry.identity[:2], f"released-{entry_id}") for entry_id, entry in entries.items()]
    asked += [(*entry.identity[:2], f"operation-{entry_id}") for entry_id, entry in entries.items()]
    for entry in entries.values():
        parts = [part for part in (entry.record, entry.tombstone) if part is not None]
        asked += [(*entry.identity[:2], part.operation_id) for part in parts]
    return {each[2]: await engine.find_operation(*each) for each in asked}
