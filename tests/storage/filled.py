"""A data directory with a bit of everything that a server could have written, much of it in the journal alone."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from idemactor.core.delivery import Delivery, Ending, Event
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.record import EarlierToken, Entry, Incident, Record, State, Tombstone
from idemactor.core.tally import Tally, TallyKey
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import JournalFile
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.layout import read_meta
from idemactor.storage.reading import Whole
from idemactor.storage.resharding import open_readers
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite import SqliteEngine
from tests.storage import samples
from tests.storage.samples import NOW

KEYS: Final = 60

IncidentKey = tuple[Identity, int]


@dataclass
class Content:
    """What is there, by what does not depend on the shard."""

    wholes: dict[Identity, Whole] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    incidents: dict[IncidentKey, Incident] = field(default_factory=dict)

    def plain(self) -> Content:
        """The same without the numbers that another set of shards gives anew."""
        wholes = {identity: Whole(replace(w.entry, id=0), w.intent) for identity, w in self.wholes.items()}
        return Content(wholes, dict(self.events), dict(self.incidents))


class Filler:
    """A running server's storage, as far as files go; ``turn`` writes a random batch of one shard."""

    def __init__(
        self,
        rng: Random,
        path: Path,
        shards: int,
        *,
        rows: int = 12,
        checksums: bool | None = None,
        keys: Keyring | None = None,
    ) -> None:
        self.rng = rng
        self.path = path
        self.directory = DataDirectory.open(path, shards, checksums=checksums)
        self.shards = shards
        self.now = NOW
        self.seq = NOW * 1_000
        journal = Journal(JournalFile(self.directory.journal_path(0)), "never")
        self.journal = journal
        self.engines = [
            JournaledEngine(
                shard,
                SqliteEngine(self.directory.engine_path(shard), shard=shard, shards=shards, threads="never", keys=keys),
                journal,
                rows=rows,
                keys=keys,
            )
            for shard in range(shards)
        ]
        self.tokens = [0] * shards
        self.contents = [Content() for _ in range(shards)]
        self.history = [[each] for each in self.contents]

    async def open(self) -> None:
        for shard, engine in enumerate(self.engines):
            self.tokens[shard] = (await engine.open()).last_token

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()
        await self.journal.close()
        self.directory.close()

    @property
    def content(self) -> Content:
        """All that was acknowledged."""
        whole = Content()
        for each in self.contents:
            whole.wholes |= each.wholes
            whole.events |= each.events
            whole.incidents |= each.incidents
        return whole

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await self.turn()

    def _empty(self, batch: Batch, after: Content) -> None:
        """Somebody forgets keys that have left events and incidents."""
        held = {each.identity for each in after.events.values()}
        held |= {each.identity for each in after.incidents.values()}
        batch.emptied.extend(self.rng.sample(sorted(held), min(len(held), self.rng.choice((0, 0, 0, 1)))))
        gone = set(batch.emptied)
        after.events.update((which, each.emptied()) for which, each in after.events.items() if each.identity in gone)
        after.incidents.update(
            (which, each.emptied()) for which, each in after.incidents.items() if each.identity in gone
        )

    async def turn(self) -> None:
        shard = self.rng.randrange(self.shards)
        content = self.contents[shard]
        self.now += self.rng.randrange(20)
        after = Content(dict(content.wholes), dict(content.events), dict(content.incidents))
        batch = Batch(self.now, self.tokens[shard])
        self._empty(batch, after)
        for identity in {self._identity(shard) for _ in range(self.rng.randrange(1, 6))}:
            self._change(batch, after, shard, identity)
        self._events(batch, after, shard)
        await self._incidents(batch, after, shard)
        batch.last_token = self.tokens[shard]
        tallies = tallies_of(after)
        gone = dict.fromkeys(tallies_of(content).keys() - tallies.keys(), Tally())
        batch.tallies = tallies | gone
        assert await self.engines[shard].commit(batch) is CommitResult.OK
        self.contents[shard] = after
        self.history[shard].append(after)
        await self.engines[shard].maintain()

    def _identity(self, shard: int) -> Identity:
        while True:
            namespace = self.rng.choice(("trade", "pay"))
            identity = Identity(self.rng.choice(("default", "acme")), namespace, f"k{self.rng.randrange(KEYS)}")
            if shard_of(identity_hash(identity), self.shards) == shard:
                return identity

    def _token(self, shard: int) -> int:
        self.tokens[shard] += 1
        return self.tokens[shard]

    def _change(self, batch: Batch, after: Content, shard: int, identity: Identity) -> None:
        old = after.wholes.get(identity)
        if old is not None and self.rng.random() < 0.3:
            batch.deletes.append(old.entry)
            del after.wholes[identity]
            return
        token = self._token(shard)
        entry_id = token if old is None else old.entry.id
        whole = self._whole(entry_id, identity, token)
        batch.puts.append(whole.entry)
        if old is not None and old.intent is not None:
            batch.undelivered.append(entry_id)
        if whole.intent is not None:
            batch.intents[entry_id] = whole.intent
        after.wholes[identity] = whole

    def _whole(self, entry_id: int, identity: Identity, token: int) -> Whole:
        rng = self.rng
        tombstone = None
        if rng.random() < 0.3 and token > entry_id:
            ending = rng.choice((None, Ending.CANCELLED, Ending.FAILED))
            tombstone = Tombstone(
                token - 1, "r", samples.operation(2**70 + token), self.now + 99, rng.random() < 0.5, ending
            )
            if rng.random() < 0.4:
                return Whole(Entry(entry_id, identity, None, tombstone, self.now + 9), None)
        state = rng.choice(tuple(State))
        done = state is State.COMMITTED
        record = Record(
            state=state,
            attempt=rng.randrange(1, 4),
            token=token,
            operation_id=samples.operation(token),
            first_seen_at=self.now,
            reserved_at=self.now,
            lease_expires_at=None if done else self.now + 5,
            holder=rng.choice((None, "worker", "größer 🦀")),
            committed_at=self.now if done else None,
            expires_at=self.now + 1_000 if done else None,
            outcome=samples.outcome(rng, samples.FIELDS) if done and rng.random() < 0.7 else None,
            contested=rng.random() < 0.1,
            earlier=(EarlierToken(entry_id, reported=True),) if token > entry_id and rng.random() < 0.3 else (),
        )
        intent = None
        if rng.random() < 0.4:
            intent = samples.intent(rng, samples.FIELDS, samples.NAMES)
            self.seq += rng.randrange(1, 3)
            record = replace(record, delivery=self._delivery(state))
        return Whole(Entry(entry_id, identity, record, tombstone, self.now + 5), intent)

    def _delivery(self, state: State) -> Delivery:
        ending = Ending.SUCCEEDED if state is State.COMMITTED else None
        order_key = self.rng.choice((None, "account"))
        due_at = None if ending is not None else self.now
        return Delivery(self.seq, order_key, due_at, self.now + 999, self.rng.random() < 0.5, ending)

    def _events(self, batch: Batch, after: Content, shard: int) -> None:
        for _ in range(self.rng.randrange(3)):
            self.seq += 1
            event = samples.event(self.seq, self._identity(shard), order_key=self.rng.choice((None, "account")))
            event = replace(event, committed_at=self.now)
            batch.events.append(event)
            after.events[event.id] = event
        for event_id in self.rng.sample(sorted(after.events), min(len(after.events), self.rng.randrange(2))):
            batch.acked.append(after.events.pop(event_id).seq)

    async def _incidents(self, batch: Batch, after: Content, shard: int) -> None:
        if self.rng.random() < 0.3:
            outcome = samples.outcome(self.rng, samples.FIELDS) if self.rng.random() < 0.5 else None
            token = self._token(shard)
            incident = Incident(self._identity(shard), samples.operation(token), token, None, self.now, outcome)
            batch.incidents.append(incident)
            after.incidents[incident.identity, token] = incident
        if self.rng.random() < 0.2:
            stored = await self.engines[shard].list_incidents("default", "trade", 0, 1)
            for each in stored:
                batch.acknowledged.append(each.id)
                del after.incidents[each.incident.identity, each.incident.token]


def tallies_of(content: Content) -> dict[TallyKey, Tally]:
    """What a shard counts."""
    found: dict[TallyKey, Tally] = {}
    for identity, whole in content.wholes.items():
        tally = found.setdefault(identity[:2], Tally())
        record = whole.entry.record
        tally.records += 1
        if record is not None:
            tally.pending += record.state is State.PENDING
            tally.in_doubt += record.state in (State.LAPSED, State.DOUBTED)
            tally.committed += record.state is State.COMMITTED
            tally.contested += record.contested
    for identity, _ in content.incidents:
        found.setdefault(identity[:2], Tally()).incidents += 1
    return found


def content_of(path: Path, keys: Keyring | None = None) -> Content:
    """What a directory that nobody uses holds; fails where a key is in a shard that is not its own, or twice."""
    meta = read_meta(path)
    assert meta is not None
    content = Content()
    with open_readers(meta.home(path), meta, keys) as readers:
        for reader in readers:
            ids = [0]
            for whole in reader.wholes():
                assert whole.entry.identity not in content.wholes
                assert shard_of(identity_hash(whole.entry.identity), meta.shards) == reader.shard
                ids.append(whole.entry.id)
                content.wholes[whole.entry.identity] = whole
            assert ids == sorted(set(ids))
            assert ids[-1] <= reader.last_token
            assert reader.count() == len(ids) - 1
            content.events |= {event.id: event for event in reader.events()}
            content.incidents |= {(each.identity, each.token): each for each in reader.incidents()}
    return content


def killed(path: Path, copy: Path) -> Path:
    """The directory as the end of its server's process would leave it."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.lock", "LOCK", "*-shm"))
    return copy
