"""A shard's memory: decides a batch of commands in order and says what must be written before the answers leave.

Pure: no clock, no randomness, no I/O. The shell around it (``shard/actor.py``) calls ``begin``, loads what
``missing`` names and lets it ``absorb`` that, calls ``sweep``, ``apply`` and ``time_out`` any number of times, then
``finish``; writes the batch; and only then hands out the answers. If the write fails the ledger is thrown away and
read anew: it never has to undo anything.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar, cast

from idemactor.core.census import Census
from idemactor.core.commands import (
    Accept,
    AckEvent,
    Claim,
    Command,
    Commit,
    Dispatch,
    Forget,
    Lapse,
    NackEvent,
    Reserve,
    Watch,
)
from idemactor.core.decide import decide, sweep
from idemactor.core.decision import Decision, Fresh
from idemactor.core.delivery import Event, Intent
from idemactor.core.keys import Identity
from idemactor.core.lifetimes import at
from idemactor.core.outbox import Item
from idemactor.core.outboxes import Outboxes
from idemactor.core.policy import Policy
from idemactor.core.record import Entry, Incident, State
from idemactor.core.replies import (
    Acked,
    Claimed,
    Committed,
    Dispatched,
    InFlight,
    Nacked,
    Reply,
    Stale,
    Unsettled,
    Watched,
)
from idemactor.core.tally import Tally, TallyKey
from idemactor.core.trouble import TROUBLES_MAX, WAITED_LONG_MS, Trouble, trouble_between, waited_long

WAITERS_MAX: Final = 10_000
"""How many callers may wait in one shard; one more is told ``in_flight`` at once."""

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
"""How much a shard keeps of what is on disk, by the estimate of ``_cost``."""

ENTRY_BYTES: Final = 1_500
"""About what an entry without outcome takes in memory."""


class Ticket(Protocol):
    """Whose command it is; the ledger only ever asks whether the caller was seen to leave."""

    @property
    def closed(self) -> bool:
        """Whether the caller's connection was seen to close."""


T = TypeVar("T", bound=Ticket)


@dataclass(slots=True)
class _Waiter(Generic[T]):
    ticket: T
    command: Reserve | Watch
    deadline: int
    done: bool = False


@dataclass(slots=True)
class Work(Generic[T]):
    """What a batch of decisions comes to.

    Attributes:
        replies: The answers, in order of decision; they may leave once the rest is on disk.
        gone: Callers that waited and were seen to leave; nothing was decided for them.
        puts: Entries to write, by id.
        deletes: Entries to remove, by id.
        incidents: New evidence.
        tallies: New absolute counts of every tenant and namespace that changed.
        rule_changes: Fingerprints that were set aside because they were made under another rule.
        intents: Of entries that are new, by the entry's id.
        undelivered: Ids of entries that stay, and whose delivery is gone.
        events: New in the outbox.
        acked: The ``seq`` of events that are dealt with.
        emptied: Keys whose incidents and events are to keep nothing of what they hold.
        last_seq: The latest place in line that was given; 0: none was.
        troubles: What somebody on call wants to be told of, ``TROUBLES_MAX`` at most.
        untold: How many there were beyond those.
    """

    replies: list[tuple[T, Reply]] = field(default_factory=list)
    gone: list[T] = field(default_factory=list)
    puts: dict[int, Entry] = field(default_factory=dict)
    deletes: dict[int, Entry] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)
    rule_changes: int = 0
    intents: dict[int, Intent] = field(default_factory=dict)
    undelivered: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    emptied: list[Identity] = field(default_factory=list)
    last_seq: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    untold: int = 0

    @property
    def covers_ms(self) -> int:
        """A time, milliseconds since the epoch, that is after every place in line that was given.

        A clock that starts from the latest time on disk gives none of them again, nor one before them.
        """
        return self.last_seq // 1_000 + 1 if self.last_seq else 0


class Ledger(Generic[T]):
    """The entries, waiters and counts of one shard.

    Args:
        shard: Its number, for the census.
        policies: Settings by namespace.
        census: The key counts of the whole process.
        entropy: Gives ``ids.ENTROPY_BITS`` random bits.
        last_token: The highest token that this shard ever granted.
        tallies: The counts as they are on disk.
        sequence: Gives places in line for what enters the outbox; None: it has one of its own.
    """

    def __init__(
        self,
        shard: int,
        policies: Mapping[str, Policy],
        census: Census,
        entropy: Callable[[], int],
        last_token: int,
        tallies: Mapping[TallyKey, Tally],
        *,
        sequence: Callable[[], int] | None = None,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        self.last_token = last_token
        self.tallies: dict[TallyKey, Tally] = dict(tallies)
        self._shard = shard
        self._policies = policies
        self._census = census
        self._entropy = entropy
        self._sequence = sequence or itertools.count(1).__next__
        self.outbox = Outboxes(policies)
        self.fetched: dict[int, Event] = {}
        self._cache: OrderedDict[Identity, Entry] = OrderedDict()
        self._cache_bytes = 0
        self._cache_bytes_max = cache_bytes_max
        self._waiters: dict[Identity, list[_Waiter[T]]] = {}
        self._wait_heap: list[tuple[int, int, _Waiter[T]]] = []
        self._wait_count = 0
        self._wait_seq = 0
        self._purged = False
        self._now = 0
        self._work: Work[T] = Work()
        census.replace(shard, {key: tally.records for key, tally in tallies.items()})

    # -------------------------------------------------------------------------------------------- reading and writing

    def missing(self, identities: Iterable[Identity]) -> set[Identity]:
        """Those of ``identities`` that have to be looked up on disk before they can be decided."""
        cache = self._cache
        return {identity for identity in identities if identity not in cache}

    def begin(self, now: int) -> None:
        """Start a batch at ``now``."""
        self._now = now
        self._work = Work()
        self._purged = False
        self.fetched = {}

    def absorb(self, loaded: Mapping[Identity, Entry]) -> int:
        """Take in what was found on disk of ``missing``; returns what it takes in memory, bytes, by an estimate."""
        before = self._cache_bytes
        for identity, entry in loaded.items():
            self._remember(identity, entry)
        return self._cache_bytes - before

    def finish(self) -> Work[T]:
        """The batch that was decided since ``begin``."""
        cache = self._cache
        while self._cache_bytes > self._cache_bytes_max and cache:
            _, entry = cache.popitem(last=False)
            self._cache_bytes -= _cost(entry)
        return self._work

    # ------------------------------------------------------------------------------------------------------- deciding

    def apply(self, ticket: T, command: Command) -> None:
        """Decide one command; later ones see what it did."""
        if self._wait_count and command.identity in self._waiters:
            # Time decides, not the alarm: a lease that ended is for those who came first and wait.
            self.sweep(command.identity)
        if isinstance(command, AckEvent | NackEvent):
            self._work.replies.append((ticket, self._told_of_event(command)))
            return
        decision = self._decide(command)
        reply = decision.reply
        if _may_wait_for(command, reply) and self._may_wait():
            self._park(ticket, cast("Reserve | Watch", command))
            return
        self._work.replies.append((ticket, reply))
        if type(command) is Forget and type(reply) is not Unsettled:
            self._empty(command.identity)
        if decision.changed and self._wait_count:
            self._settle(command.identity)

    def sweep(self, identity: Identity) -> None:
        """Let the alarm of a key do its work, if it is due."""
        entry = self._cache.get(identity)
        if entry is None or entry.alarm_at is None or entry.alarm_at > self._now:
            return
        self._replace(identity, entry, sweep(entry, self._policies[identity.namespace], self._now))
        self._settle(identity)

    def acknowledge(self, key: TallyKey) -> None:
        """Count an incident out; the shell adds its id to the batch."""
        self._tally(key).incidents -= 1

    # -------------------------------------------------------------------------------------------------------- waiting

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return self._wait_count

    @property
    def next_timeout(self) -> int | None:
        """When the next caller has waited long enough, milliseconds since the epoch."""
        while self._wait_heap and self._wait_heap[0][2].done:
            heapq.heappop(self._wait_heap)
        return self._wait_heap[0][0] if self._wait_heap else None

    def timing_out(self, now: int) -> list[Identity]:
        """The keys whose waiters time out by ``now``: they have to be in memory before ``time_out``."""
        heap = self._wait_heap
        if not heap or heap[0][0] > now:
            return []
        return [waiter.command.identity for at_ms, _, waiter in heap if at_ms <= now]

    def time_out(self, *, everyone: bool = False) -> None:
        """Answer those who have waited long enough, or everyone, with what is true now."""
        while self._wait_heap and (everyone or self._wait_heap[0][0] <= self._now):
            waiter = self._wait_heap[0][2]
            if waiter.done:
                heapq.heappop(self._wait_heap)
                continue
            # After this only a running lease is left to wait for: what follows changes nothing for the others.
            self.sweep(waiter.command.identity)
            if waiter.done:
                continue
            if waiter.ticket.closed:
                self._send_away(waiter)
                continue
            # Whoever is decided leaves only now: where deciding breaks, ``abandon`` has to find everyone.
            decision = self._decide(waiter.command)
            self._leave(waiter)
            self._note_wait(waiter, decision.reply)
            self._work.replies.append((waiter.ticket, decision.reply))

    def waiting_for(self, identity: Identity) -> int:
        """How many callers wait for this key."""
        return len(self._waiters.get(identity, ()))

    def _note_wait(self, waiter: _Waiter[T], reply: Reply) -> None:
        identity = waiter.command.identity
        waited_ms = self._now - (waiter.deadline - waiter.command.wait_ms)
        if type(reply) is not InFlight or waited_ms < WAITED_LONG_MS:
            return
        entry = self._cache.get(identity)
        if entry is not None and entry.record is not None:
            self._note(waited_long(identity, entry.record, self._now, waited_ms))

    def abandon(self) -> list[T]:
        """Let every waiter go, undecided: the shard cannot answer them."""
        tickets = [w.ticket for _, _, w in sorted(self._wait_heap, key=lambda item: item[1]) if not w.done]
        self._wait_heap.clear()
        self._waiters.clear()
        self._wait_count = 0
        return tickets

    def _park(self, ticket: T, command: Reserve | Watch) -> None:
        waiter = _Waiter(ticket, command, self._now + command.wait_ms)
        self._waiters.setdefault(command.identity, []).append(waiter)
        heapq.heappush(self._wait_heap, (waiter.deadline, self._wait_seq, waiter))
        self._wait_seq += 1
        self._wait_count += 1

    def _may_wait(self) -> bool:
        """Whether there is room for one more; those who hung up are sent away first, once a batch."""
        if self._wait_count >= WAITERS_MAX and not self._purged:
            self._purged = True
            for waiter in [w for _, _, w in self._wait_heap if not w.done and w.ticket.closed]:
                self._send_away(waiter)
        return self._wait_count < WAITERS_MAX

    def _send_away(self, waiter: _Waiter[T]) -> None:
        self._leave(waiter)
        self._work.gone.append(waiter.ticket)

    def _leave(self, waiter: _Waiter[T]) -> None:
        waiter.done = True
        self._wait_count -= 1
        if len(self._wait_heap) > 2 * (self._wait_count + WAITERS_MAX):
            # Those who were answered early leave their place in the heap behind; it must not grow with traffic.
            self._wait_heap = [item for item in self._wait_heap if not item[2].done]
            heapq.heapify(self._wait_heap)
        queue = self._waiters[waiter.command.identity]
        queue.remove(waiter)
        if not queue:
            del self._waiters[waiter.command.identity]

    def _settle(self, identity: Identity) -> None:
        """Decide a key's waiters anew, in order of arrival; one pass does, since the first who can go on ends it."""
        if identity not in self._waiters:
            return
        for waiter in list(self._waiters[identity]):
            if waiter.ticket.closed:
                self._send_away(waiter)
                continue
            decision = self._decide(waiter.command)
            if not _may_wait_for(waiter.command, decision.reply):
                self._leave(waiter)
                self._work.replies.append((waiter.ticket, decision.reply))

    # ------------------------------------------------------------------------------------------------------ one entry

    def _decide(self, command: Command) -> Decision:
        identity = command.identity
        entry = self._cache.get(identity)
        policy = self._policies[identity.namespace]
        decision = decide(entry, command, policy, self._now, self._fresh(command, policy))
        if decision.granted:
            self.last_token += 1
        if decision.incident is not None:
            self._work.incidents.append(decision.incident)
            self._tally((identity.tenant, identity.namespace)).incidents += 1
        if decision.rule_changed:
            self._work.rule_changes += 1
        if decision.changed:
            self._replace(identity, entry, decision.entry)
            if type(command) is Dispatch or type(command) is Commit:
                self._keep_beside(command, decision)
        elif entry is not None:
            self._cache.move_to_end(identity)
        return decision

    def _fresh(self, command: Command, policy: Policy) -> Fresh:
        if type(command) is not Reserve and type(command) is not Accept:
            if type(command) is Dispatch or type(command) is Claim:
                return self._fresh_in_line(command, policy)
            return _NOTHING_FRESH
        identity = command.identity
        room = self._census.total((identity.tenant, identity.namespace)) < policy.records_max
        return Fresh(self.last_token + 1, self._entropy(), room)

    def _fresh_in_line(self, command: Command, policy: Policy) -> Fresh:
        """As ``_fresh``, for what enters the outbox or leaves it to be delivered."""
        identity = command.identity
        room = self._census.total((identity.tenant, identity.namespace)) < policy.records_max
        seq = self._next_seq() if type(command) is Dispatch and self.outbox.has_room else 0
        return Fresh(self.last_token + 1, self._entropy(), room, seq)

    # ----------------------------------------------------------------------------------------------------- the outbox

    def _next_seq(self) -> int:
        self._work.last_seq = self._sequence()
        return self._work.last_seq

    def new_intent(self, entry_id: int) -> Intent | None:
        """The intent of an entry that this batch made."""
        return self._work.intents.get(entry_id)

    def new_events(self) -> list[Event]:
        """The events that this batch announces."""
        return self._work.events

    def claim(self, item: Item, lease_ms: int, holder: str) -> Entry | None:
        """Claim an intent that is due and in memory; its entry as it is then, or None where it is not to be had."""
        entry = self._cache.get(item.identity) if item.identity else None
        if entry is None or entry.id != item.id:
            self.outbox.pass_over(item)
            return None
        decision = self._decide(Claim(entry.identity, lease_ms, holder))
        if decision.changed and self._wait_count:
            self._settle(entry.identity)
        if type(decision.reply) is not Claimed:
            self.outbox.pass_over(item)
            return None
        return decision.entry

    def lapse(self, item: Item, holder: str) -> None:
        """Let an attempt lapse whose relay is gone, if it is in memory."""
        if item.identity is None or item.identity not in self._cache:
            return
        if self._decide(Lapse(item.identity, holder)).changed and self._wait_count:
            self._settle(item.identity)

    def _keep_beside(self, command: Dispatch | Commit, decision: Decision) -> None:
        """The intent of a dispatch, or the events of a commit, enter the outbox with what was decided."""
        entry = decision.entry
        if entry is None or entry.record is None:
            return
        if isinstance(command, Dispatch):
            if type(decision.reply) is Dispatched:
                self._work.intents[entry.id] = command.intent
        elif type(decision.reply) is Committed:
            for number, content in enumerate(command.events, 1):
                operation_id = entry.record.operation_id
                name = f"{operation_id}.{number}"
                event = Event(self._next_seq(), entry.identity, name, operation_id, self._now, content)
                self._work.events.append(event)
                self.outbox.announce(event)

    def _empty(self, identity: Identity) -> None:
        """What is left of a key that was forgotten, its proofs and announcements, holds nothing from now on.

        Its record may have ended long before them. Where there are neither, nothing has to be written.
        """
        work, tally = self._work, self.tallies.get((identity.tenant, identity.namespace))
        if (tally is None or not tally.incidents) and not len(self.outbox) and self.outbox.recalled:
            return
        work.emptied.append(identity)
        work.incidents[:] = [each.emptied() if each.identity == identity else each for each in work.incidents]
        work.events[:] = [each.emptied() if each.identity == identity else each for each in work.events]

    def _told_of_event(self, command: AckEvent | NackEvent) -> Reply:
        event = self.fetched.get(command.seq)
        if event is None or event.identity[:2] != command.identity[:2]:
            # Somebody else's is none: nobody learns that it is there.
            return Acked(repeated=True)
        if (event.identity.key, event.id) != (command.identity.key, command.event_id):
            return Stale(None)
        # While the outbox is still being read it may be on disk alone.
        item = self.outbox.event(command.identity, command.seq)
        if isinstance(command, AckEvent):
            del self.fetched[command.seq]
            self._work.acked.append(command.seq)
            if item is not None:
                self.outbox.acknowledge(item)
            return Acked(repeated=False)
        due_at = max(self._now, command.due_at)
        if item is not None:
            self.outbox.put_off(item, due_at)
        return Nacked(due_at)

    def _replace(self, identity: Identity, old: Entry | None, new: Entry | None) -> None:
        if new is old:
            return
        self._count(identity, old, new)
        work = self._work
        if old is not None and new is not None:
            trouble = trouble_between(old, new, self._now)
            if trouble is not None:
                self._note(trouble)
        if _is_dispatched(old) or _is_dispatched(new):
            self._track(old, new)
        if old is not None and (new is None or new.id != old.id):
            work.puts.pop(old.id, None)
            work.deletes[old.id] = old
        if new is None:
            if self._cache.pop(identity, None) is not None and old is not None:
                self._cache_bytes -= _cost(old)
            return
        work.deletes.pop(new.id, None)
        work.puts[new.id] = new
        self._remember(identity, new)

    def _note(self, trouble: Trouble) -> None:
        work = self._work
        if len(work.troubles) < TROUBLES_MAX:
            work.troubles.append(trouble)
        else:
            work.untold += 1

    def _track(self, old: Entry | None, new: Entry | None) -> None:
        """Something dispatched came, changed or ended."""
        self.outbox.follow(old, new)
        if old is None or not _is_dispatched(old):
            return
        if new is None or new.id != old.id:
            self._work.intents.pop(old.id, None)
        elif _operation(new) != _operation(old):
            self._work.intents.pop(old.id, None)
            self._work.undelivered.append(old.id)

    def _remember(self, identity: Identity, entry: Entry) -> None:
        old = self._cache.get(identity)
        self._cache_bytes += _cost(entry)
        self._cache[identity] = entry
        if old is not None:
            self._cache_bytes -= _cost(old)
            # A new one is at the end already.
            self._cache.move_to_end(identity)

    def _count(self, identity: Identity, old: Entry | None, new: Entry | None) -> None:
        key = (identity.tenant, identity.namespace)
        tally = self._tally(key)
        grown = (new is not None) - (old is not None)
        if grown:
            tally.records += grown
            self._census.add(self._shard, key, grown)
        if old is not None:
            _count_record(tally, old, -1)
        if new is not None:
            _count_record(tally, new, 1)

    def _tally(self, key: TallyKey) -> Tally:
        tally = self._work.tallies.get(key)
        if tally is None:
            tally = self.tallies.setdefault(key, Tally())
            self._work.tallies[key] = tally
        return tally


_NOTHING_FRESH: Final = Fresh(token=0, entropy=0, room=False)


def _is_dispatched(entry: Entry | None) -> bool:
    return entry is not None and entry.record is not None and entry.record.delivery is not None


def _operation(entry: Entry) -> str | None:
    """Of a dispatched record."""
    return entry.record.operation_id if entry.record is not None and entry.record.delivery is not None else None


def _may_wait_for(command: Command, reply: Reply) -> bool:
    """Whether this is an answer that a caller would rather wait for to change."""
    if type(command) is Reserve:
        return type(reply) is InFlight and command.wait_ms > 0
    return type(command) is Watch and type(reply) is Watched and command.wait_ms > 0 and not reply.state.ended


def _count_record(tally: Tally, entry: Entry, by: int) -> None:
    record = entry.record
    if record is None:
        return
    if record.state is State.PENDING:
        tally.pending += by
    elif record.state is State.COMMITTED:
        tally.committed += by
    else:
        tally.in_doubt += by
    if record.contested:
        tally.contested += by


def _cost(entry: Entry) -> int:
    outcome = entry.record.outcome if entry.record else None
    return ENTRY_BYTES + (outcome.cost() if outcome else 0)


def visible(entry: Entry, policy: Policy, now: int) -> Entry | None:
    """The entry as a listing shows it at ``now``; None where time has ended its record."""
    record = at(entry.record, policy, now)
    if record is None:
        return None
    return Entry(entry.id, entry.identity, record, entry.tombstone, entry.alarm_at)
