"""What a shard reads and claims for whoever takes from its outbox."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from idemactor.core.clock import Sequencer
from idemactor.core.commands import AckEvent, Command, NackEvent
from idemactor.core.delivery import Event, Intent, Kind
from idemactor.core.ledger import Ledger, Ticket
from idemactor.core.limits import POLL_BYTES_MAX
from idemactor.core.outbox import Item
from idemactor.core.outboxes import Offer
from idemactor.core.queries import Take, Taken, TakenEvent, TakenIntent
from idemactor.core.record import Entry
from idemactor.storage.base import Engine

T = TypeVar("T", bound=Ticket)

CHUNK: Final = 16
"""How many intents are read at a time: what they come to in bytes is known only then."""

RECALLED_AT_A_TIME: Final = 256
"""How many entries of the outbox are brought into memory in one turn: it takes 2 to 3 ms."""

NOTHING: Final = Taken((), (), (), None, more=False)


async def recall(engine: Engine, ledger: Ledger[T], sequencer: Sequencer) -> None:
    """Bring the next piece of the outbox's index into memory, until all of it is there.

    Raises:
        StorageError: It cannot be read.
    """
    outbox = ledger.outbox
    if not outbox.complete_to:
        # What is given out from now on has to stand behind what is still to be read.
        sequencer.observe(await engine.last_seq())
    rows = await engine.outbox(outbox.complete_to, RECALLED_AT_A_TIME)
    for row in rows:
        outbox.recall(
            row.kind,
            row.id,
            row.tenant,
            row.namespace,
            row.seq,
            row.order_key,
            row.state,
            row.lease_expires_at,
            row.due_at,
            row.holder,
        )
    if len(rows) < RECALLED_AT_A_TIME:
        outbox.recalled = True
    else:
        outbox.complete_to = rows[-1].seq


async def look_up_fetched(engine: Engine, ledger: Ledger[T], commands: Iterable[Command]) -> None:
    """Have the events that somebody fetched and speaks of, to see whose they are.

    Raises:
        StorageError: The disk cannot be read.
    """
    seqs = [command.seq for command in commands if type(command) is AckEvent or type(command) is NackEvent]
    if seqs:
        ledger.fetched = await engine.load_events(seqs)


async def take(engine: Engine, ledger: Ledger[T], query: Take, now: int) -> Taken:
    """Claim what is due; what it says becomes true with the write of this turn.

    Raises:
        StorageError: The disk cannot be read.
    """
    orphans = ledger.outbox.orphans(query)
    if orphans:
        await _bring_in(engine, ledger, orphans)
        for item in orphans:
            ledger.lapse(item, query.holder)
    offer = ledger.outbox.offer(query, now)
    intents: list[TakenIntent] = []
    events: list[TakenEvent] = []
    room = POLL_BYTES_MAX
    for start in range(0, len(offer.items), CHUNK):
        if room <= 0:
            break
        chunk = offer.items[start : start + CHUNK]
        claimed = await _claim_intents(engine, ledger, query, [i for i in chunk if i.kind is Kind.INTENT])
        shown = await _show_events(engine, ledger, query, [i for i in chunk if i.kind is Kind.EVENT], now)
        room -= sum(one.intent.size() for one in claimed) + sum(one.event.content.size() for one in shown)
        intents.extend(claimed)
        events.extend(shown)
    return _taken(ledger, query, offer, intents, events, now)


def _taken(
    ledger: Ledger[T],
    query: Take,
    offer: Offer,
    intents: Sequence[TakenIntent],
    events: Sequence[TakenEvent],
    now: int,
) -> Taken:
    ledger.outbox.close(offer)
    next_at = ledger.outbox.next_at(query)
    return Taken(
        tuple(sorted(intents, key=lambda one: one.seq)),
        tuple(sorted(events, key=lambda one: one.event.seq)),
        tuple(offer.heads),
        next_at,
        more=next_at is not None and next_at <= now,
    )


async def _claim_intents(engine: Engine, ledger: Ledger[T], query: Take, items: Sequence[Item]) -> list[TakenIntent]:
    if not items:
        return []
    bodies = await _intents(engine, ledger, items)
    await _bring_in(engine, ledger, items)
    taken = []
    for item in items:
        intent = bodies.get(item.id)
        if intent is None:
            ledger.outbox.pass_over(item)
            continue
        entry = ledger.claim(item, query.lease_ms, query.holder)
        if entry is not None:
            taken.append(_taken_intent(entry, intent))
    return taken


async def _intents(engine: Engine, ledger: Ledger[T], items: Sequence[Item]) -> dict[int, Intent]:
    new = {item.id: intent for item in items if (intent := ledger.new_intent(item.id)) is not None}
    kept = [item.id for item in items if item.id not in new]
    return {**new, **(await engine.load_intents(kept))} if kept else new


async def _bring_in(engine: Engine, ledger: Ledger[T], items: Sequence[Item]) -> None:
    """Have the entries in memory; of some not even the key is known before the disk was asked."""
    known = {item.identity for item in items if item.identity is not None}
    missing = ledger.missing(known)
    wanted = [item.id for item in items if item.identity is None or item.identity in missing]
    if not wanted:
        return
    loaded = await engine.load_ids(wanted)
    for item in items:
        if item.id in loaded:
            item.identity = loaded[item.id].identity
    # What is in memory already may be newer.
    absent = ledger.missing([entry.identity for entry in loaded.values()])
    ledger.absorb({entry.identity: entry for entry in loaded.values() if entry.identity in absent})


def _taken_intent(entry: Entry, intent: Intent) -> TakenIntent:
    record = entry.record
    assert record is not None
    assert record.delivery is not None
    assert record.lease_expires_at is not None
    delivery = record.delivery
    return TakenIntent(
        identity=entry.identity,
        operation_id=record.operation_id,
        token=record.token,
        attempt=record.attempt,
        accepted_at=delivery.seq // 1_000,
        lease_expires_at=record.lease_expires_at,
        deliver_until=delivery.deliver_until,
        perhaps_sent=delivery.perhaps_sent,
        order_key=delivery.order_key,
        seq=delivery.seq,
        intent=intent,
    )


async def _show_events(
    engine: Engine, ledger: Ledger[T], query: Take, items: Sequence[Item], now: int
) -> list[TakenEvent]:
    if not items:
        return []
    new = {event.seq: event for event in ledger.new_events()}
    kept = [item.id for item in items if item.id not in new]
    found: dict[int, Event] = {**new, **(await engine.load_events(kept))} if kept else new
    taken = []
    until = now + query.lease_ms
    for item in items:
        event = found.get(item.id)
        if event is None:
            ledger.outbox.pass_over(item)
            continue
        ledger.outbox.show(item, until)
        taken.append(TakenEvent(event, item.tries, until))
    return taken
