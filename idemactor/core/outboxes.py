"""A shard's outbox as its ledger sees it: what records and commits put into it, and who may take what. Pure.

The index itself, which knows neither records nor policies, is ``outbox.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from idemactor.core.delivery import RELAY, Event, Kind
from idemactor.core.dispatching import due_at, is_orphan
from idemactor.core.keys import Identity
from idemactor.core.limits import OUTBOX_ENTRIES_MAX
from idemactor.core.outbox import HEADS_MAX, Item, LineKey, Outbox
from idemactor.core.policy import Policy
from idemactor.core.queries import OutboxCount, Take, Turn
from idemactor.core.record import Entry, Record, State

HEADS_SHARE: Final = 4
"""One place of so many is left to heads of lines, where there are any."""


@dataclass(slots=True)
class Offer:
    """What somebody may take.

    Attributes:
        items: To be claimed, the longest due first; at most as many as were asked for.
        heads: Of lines that the taker has to ask other shards about.
        looked: All that was looked at: to be put back once it is clear what was claimed.
    """

    items: list[Item] = field(default_factory=list)
    heads: list[Turn] = field(default_factory=list)
    looked: list[Item] = field(default_factory=list)


@dataclass(slots=True)
class Moves:
    """What changed in the outbox since the latest write, for those who wait for it.

    Attributes:
        namespaces: Where something came, or may be taken now.
        lines: Whose head ended here.
    """

    namespaces: set[str] = field(default_factory=set)
    lines: list[LineKey] = field(default_factory=list)


class Outboxes:
    """What of a shard's records and events waits to be delivered.

    Args:
        policies: Settings by namespace.

    Attributes:
        recalled: Whether it holds all that the disk has. Until then it holds the first part, up to ``complete_to``, and
            what comes meanwhile is left to the disk: it stands behind everything else.
        complete_to: The ``seq`` up to which it is complete, until it is ``recalled``.
    """

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self._policies = policies
        self._index = Outbox()
        self._turn = 0
        self._held: dict[int, tuple[str, str]] = {}
        self._relays: dict[str, str] = {}
        self.recalled = False
        self.complete_to = 0
        self.moves = Moves()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def has_room(self) -> bool:
        """Whether one more may enter."""
        return len(self._index) < OUTBOX_ENTRIES_MAX

    def take_moves(self) -> Moves:
        """What changed; from now on it counts anew."""
        moves, self.moves = self.moves, Moves()
        return moves

    # ------------------------------------------------------------------------------------------ what the ledger tells

    def recall(
        self,
        kind: Kind,
        entry_id: int,
        tenant: str,
        namespace: str,
        seq: int,
        order_key: str | None,
        state: State,
        lease_expires_at: int | None,
        queued_until: int | None,
        holder: str | None = None,
    ) -> None:
        """Take in something that the disk has, in order of ``seq``."""
        due = queued_until
        if kind is Kind.INTENT:
            due = due_at(state, lease_expires_at, queued_until, self._policies[namespace])
            delivering = state is State.PENDING and lease_expires_at is not None
            self._note_holder(entry_id, namespace, holder if delivering else None)
        if _is_waited_for(state, due, order_key):
            queued = kind is Kind.INTENT and state is State.PENDING and lease_expires_at is None
            not_before = (queued_until or 0) if queued else 0
            self._index.add((tenant, namespace, kind), entry_id, seq, due, order_key, not_before=not_before)
        self.moves.namespaces.add(namespace)

    def follow(self, old: Entry | None, new: Entry | None) -> None:
        """A dispatched record came, changed or ended."""
        before, after = _open_record(old), _open_record(new)
        entry = after or before
        if entry is None or entry.record is None or entry.record.delivery is None:
            return
        namespace = entry.identity.namespace
        if after is None:
            self._ended(Kind.INTENT, entry.id, namespace)
            return
        record, delivery = entry.record, entry.record.delivery
        earlier = before.record.delivery if before is not None and before.record is not None else None
        if earlier is not None and earlier.seq != delivery.seq:
            # Time had ended the earlier one before anybody came by, and its key was dispatched anew.
            self._ended(Kind.INTENT, entry.id, namespace)
        if not self._holds(delivery.seq):
            return
        due = due_at(record.state, record.lease_expires_at, delivery.due_at, self._policies[namespace])
        self._note_holder(entry.id, namespace, record.holder if _is_delivering(record) else None)
        if not _is_waited_for(record.state, due, delivery.order_key):
            self._ended(Kind.INTENT, entry.id, namespace)
            return
        if not self._index.change(Kind.INTENT, entry.id, due):
            key = (entry.identity.tenant, namespace, Kind.INTENT)
            not_before = (delivery.due_at or 0) if record.attempt == 0 else 0
            self._index.add(key, entry.id, delivery.seq, due, delivery.order_key, entry.identity, not_before=not_before)
        if due is not None and record.lease_expires_at is None:
            # Whoever claimed it has been told when its lease ends, and needs no ring for that.
            self.moves.namespaces.add(namespace)

    def _note_holder(self, entry_id: int, namespace: str, holder: str | None) -> None:
        if holder is not None and holder.startswith(RELAY):
            self._held[entry_id] = (namespace, holder)
            if holder != self._relays.get(namespace):
                # The next one that takes is asked to look, whichever it is.
                self._relays.pop(namespace, None)
        else:
            self._held.pop(entry_id, None)

    def announce(self, event: Event) -> None:
        """A commit put an event in."""
        if not self._holds(event.seq):
            return
        tenant, namespace, _ = event.identity
        key = (tenant, namespace, Kind.EVENT)
        self._index.add(key, event.seq, event.seq, event.committed_at, event.content.order_key, event.identity)
        self.moves.namespaces.add(namespace)

    def _holds(self, seq: int) -> bool:
        """Whether an entry of this ``seq`` has its place here already."""
        return self.recalled or seq <= self.complete_to

    def event(self, identity: Identity, seq: int) -> Item | None:
        """The event of that number, if it is this tenant's and namespace's."""
        item = self._index.find(Kind.EVENT, seq)
        return item if item is not None and item.queue.key[:2] == identity[:2] else None

    def acknowledge(self, item: Item) -> None:
        """An event is dealt with."""
        self._ended(Kind.EVENT, item.id, item.queue.key[1])

    def put_off(self, item: Item, due: int) -> None:
        """An event is shown again at ``due``."""
        self._index.change(Kind.EVENT, item.id, due)
        self.moves.namespaces.add(item.queue.key[1])

    def _ended(self, kind: Kind, entry_id: int, namespace: str) -> None:
        if kind is Kind.INTENT:
            self._held.pop(entry_id, None)
        line = self._index.remove(kind, entry_id)
        if line is not None:
            self.moves.lines.append(line)
            self.moves.namespaces.add(namespace)

    # ------------------------------------------------------------------------------------------------- who takes what

    def orphans(self, take: Take) -> list[Item]:
        """What relays were delivering that are gone, where the relay of today takes."""
        if not take.holder.startswith(RELAY) or self._relays.get(take.namespace) == take.holder:
            return []
        self._relays[take.namespace] = take.holder
        ids = [i for i, (ns, holder) in self._held.items() if ns == take.namespace and is_orphan(holder, take.holder)]
        found = (self._index.find(Kind.INTENT, entry_id) for entry_id in ids)
        return [item for item in found if item is not None]

    def offer(self, take: Take, now: int) -> Offer:
        """What may be claimed, everybody's in turn where no tenant is named."""
        for turn in take.behind:
            self._index.set_aside(_line(take.namespace, turn), turn.seq, now)
        offer = Offer()
        named = {_line(take.namespace, turn): turn.seq for turn in take.turns}
        queues = [(tenant, kind) for kind in take.kinds for tenant in self._tenants(take, kind)]
        self._turn += 1
        for at in range(len(queues)):
            tenant, kind = queues[(at + self._turn) % len(queues)]
            left = take.max - len(offer.items)
            if left <= 0:
                break
            # Everybody gets the same share of what is left; who wants less leaves it to the next ones.
            share = max(1, left // (len(queues) - at))
            self._look(offer, (tenant, take.namespace, kind), now, share, named)
        return offer

    def _tenants(self, take: Take, kind: Kind) -> Sequence[str]:
        return (take.tenant,) if take.tenant is not None else self._index.tenants(take.namespace, kind)

    def _look(self, offer: Offer, key: tuple[str, str, Kind], now: int, share: int, named: dict[LineKey, int]) -> None:
        """Look for what may be claimed. Where heads are shown some of the share is left to them, since what has no
        order may come without end; of a share of one it is every other one."""
        heads_before, room = len(offer.heads), share
        for item in self._index.due(key, now):
            offer.looked.append(item)
            if item.order_key is None or named.get((*key, item.order_key)) == item.seq:
                offer.items.append(item)
                share -= 1
            elif len(offer.heads) < HEADS_MAX:
                item.has_moved = False
                offer.heads.append(Turn(key[0], key[2], item.order_key, item.seq))
            if share <= 0 or len(offer.heads) >= HEADS_MAX:
                break
        kept_for_heads = max(self._turn % 2, room // HEADS_SHARE) if len(offer.heads) > heads_before else 0
        while share < kept_for_heads and offer.items and offer.items[-1].order_key is None:
            offer.items.pop()
            share += 1

    def close(self, offer: Offer) -> None:
        """It is clear what was claimed: the rest may be looked at again."""
        self._index.put_back(offer.looked)

    def next_at(self, take: Take) -> int | None:
        """When something of what was asked for is due next, or was; None: nothing waits for time."""
        times = (
            self._index.next_at((tenant, take.namespace, kind))
            for kind in take.kinds
            for tenant in self._tenants(take, kind)
        )
        return min((at for at in times if at is not None), default=None)

    def pass_over(self, item: Item) -> None:
        """It looked due, and is not to be had: its time is over, or it cannot be read. Only a change brings it back."""
        self._index.change(item.kind, item.id, None)

    def show(self, item: Item, until: int) -> None:
        """An event is shown to somebody, and to nobody else before ``until``."""
        item.tries += 1
        self._index.change(Kind.EVENT, item.id, until)

    def behind(self, namespace: str, turns: Iterable[Turn]) -> tuple[Turn, ...]:
        """Those that have something before them here."""
        # What is not read yet may be before it.
        return tuple(
            t for t in turns if not self._holds(t.seq) or self._index.stands_behind(_line(namespace, t), t.seq)
        )

    def moved(self, namespace: str, turns: Iterable[Turn]) -> None:
        """The head of these lines ended in another shard."""
        for turn in turns:
            if self._index.bring_back(_line(namespace, turn)):
                self.moves.namespaces.add(namespace)

    def counts(self, now: int) -> tuple[OutboxCount, ...]:
        """What is here, for the metrics and for operators."""
        return tuple(OutboxCount(*key, entries, oldest) for key, entries, oldest in self._index.counts(now))

    def oldest_intents(self, tenant: str, namespace: str, limit: int) -> list[int]:
        """The entries of a tenant's intents that were accepted first."""
        return self._index.oldest((tenant, namespace, Kind.INTENT), limit)


def _is_delivering(record: Record) -> bool:
    return record.state is State.PENDING and record.lease_expires_at is not None


def _line(namespace: str, turn: Turn) -> LineKey:
    return (turn.tenant, namespace, turn.kind, turn.order_key)


def _is_waited_for(state: State, due: int | None, order_key: str | None) -> bool:
    """Whether anybody may come for it, has it in hand, or stands behind it: what is only in doubt is nobody's here."""
    return due is not None or order_key is not None or state is State.PENDING


def _open_record(entry: Entry | None) -> Entry | None:
    """The entry, where it has a dispatched record that has not ended."""
    if entry is None or entry.record is None or entry.record.delivery is None:
        return None
    return entry if entry.record.delivery.ending is None else None
