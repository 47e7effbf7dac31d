"""Mistakes that a shard might make with what it dispatches, planted on purpose: the simulator has to find each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from idemactor.core.commands import Cancel, Command, Postpone
from idemactor.core.decision import Decision
from idemactor.core.delivery import Kind
from idemactor.core.ledger import Ledger, Work
from idemactor.core.outbox import Item, LineKey
from idemactor.core.outboxes import Offer, Outboxes
from idemactor.core.policy import Policy
from idemactor.core.queries import Take
from idemactor.core.record import Record
from idemactor.shard.mailbox import Envelope
from idemactor.storage.base import Opened
from tests.sim.node import SimShard


class _ClaimsBeforeTheWrite(SimShard):
    """Tells who took something before the claim is on disk."""

    async def _write(self, ledger: Ledger[Envelope], turn: Any) -> None:
        told = [(envelope, turn.taken[id(envelope)]) for envelope, query in turn.queries if type(query) is Take]
        self._hand_out(told)
        turn.queries = [(envelope, query) for envelope, query in turn.queries if type(query) is not Take]
        turn.envelopes = [e for e in turn.envelopes if type(e.command) is not Take]
        await super()._write(ledger, turn)


class _RecognisesAll(dict[str, Policy]):
    """Settings by which every destination recognises what it had before."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        recognised = {
            name: replace(policy, dispatch=replace(policy.dispatch, recognised=True))
            for name, policy in policies.items()
        }
        super().__init__(recognised)


class _ClaimsWhateverLapsed(Ledger[Envelope]):
    """Has what lapsed sent again, whether or not the destination recognises it."""

    def __init__(self, shard: int, policies: Mapping[str, Policy], *args: Any, **settings: Any) -> None:
        super().__init__(shard, _RecognisesAll(policies), *args, **settings)


class _AnyTurn(Outboxes):
    """Gives whoever takes what has an order to keep, unasked."""

    def _look(self, offer: Offer, key: Any, now: int, share: int, named: dict[LineKey, int]) -> None:
        queue = self._index._queues.get(key)
        heads = {(*key, line.key): line.head for line in queue.lines.values()} if queue else {}
        mine = {line: head.seq for line, head in heads.items() if head is not None}
        super()._look(offer, key, now, share, named | mine)


class _LooseLines(Outboxes):
    """Lets what was put off go to the end of its line."""

    def follow(self, old: Any, new: Any) -> None:
        super().follow(old, new)
        item = self._index.find(Kind.INTENT, new.id) if new is not None else None
        postponed = item is not None and item.due_at is not None and new.record.lease_expires_at is None
        if item is not None and item.line is not None and postponed and new.record.attempt:
            item.line.items.rotate(-1)
            head = item.line.head
            if head is not None:
                self._index._show(head)


class _AsideForEver(Outboxes):
    """Never comes back to a head that had something before it in another shard."""

    def offer(self, take: Take, now: int) -> Offer:
        offer = super().offer(take, now)
        for turn in take.behind:
            item = self._index._head((turn.tenant, take.namespace, turn.kind, turn.order_key))
            if item is not None and item.seq == turn.seq:
                item.aside_until = now + 10**9
        return offer

    def moved(self, namespace: str, turns: Any) -> None:
        """Hears nothing."""


class _LosesIntents(Ledger[Envelope]):
    """Forgets the intent of what is claimed in the very batch that brings it."""

    def claim(self, item: Item, lease_ms: int, holder: str) -> Any:
        self._work.intents.pop(item.id, None)
        return super().claim(item, lease_ms, holder)


class _KeepsNoIntentOfTwo(Ledger[Envelope]):
    """Writes one intent a batch."""

    def finish(self) -> Work[Envelope]:
        work = super().finish()
        while len(work.intents) > 1:
            work.intents.popitem()
        return work


class _PostponesForAnyone(Ledger[Envelope]):
    """Ignores the token of a postponement."""

    def apply(self, ticket: Envelope, command: Command) -> None:
        record = self._record_of(command)
        if isinstance(command, Postpone) and record is not None:
            command = replace(command, token=record.token)
        super().apply(ticket, command)

    def _record_of(self, command: Command) -> Record | None:
        entry = self._cache.get(command.identity)
        return entry.record if entry is not None else None


class _CancelsWhatIsUnderWay(Ledger[Envelope]):
    """Takes back what was sent, perhaps."""

    def _decide(self, command: Command) -> Decision:
        entry = self._cache.get(command.identity)
        if isinstance(command, Cancel) and entry is not None and entry.record is not None and entry.record.delivery:
            record, delivery = entry.record, entry.record.delivery
            waiting = replace(
                record, lease_expires_at=None, delivery=replace(delivery, due_at=self._now, perhaps_sent=False)
            )
            if delivery.ending is None and record.state.name == "PENDING":
                self._cache[command.identity] = replace(entry, record=waiting)
        return super()._decide(command)


class _NeverRecalls(SimShard):
    """Takes an empty outbox for what a shard has that is read anew."""

    def _read(self, opened: Opened) -> Ledger[Envelope]:
        ledger = super()._read(opened)
        ledger.outbox.recalled = True
        return ledger


class _ServesClaimsAfterAnError(SimShard):
    """Keeps the outbox that it had in memory when a write fails."""

    def _drop(self, turn: Any, error: Exception) -> None:
        self._kept = self._ledger.outbox if self._ledger is not None else None
        super()._drop(turn, error)

    def _read(self, opened: Opened) -> Ledger[Envelope]:
        ledger = super()._read(opened)
        kept: Outboxes | None = getattr(self, "_kept", None)
        if kept is not None and kept.recalled:
            ledger.outbox, self._kept = kept, None
        return ledger


def _with(ledger_type: type[Ledger[Envelope]]) -> type[SimShard]:
    class Planted(SimShard):
        pass

    Planted.ledger_type = ledger_type
    return Planted


def _with_outbox(outbox_type: type[Outboxes]) -> type[SimShard]:
    class Planted(SimShard):
        def _read(self, opened: Opened) -> Ledger[Envelope]:
            ledger = super()._read(opened)
            ledger.outbox = outbox_type(self._policies)
            return ledger

    return Planted


PLANTED_OUTBOX: dict[str, tuple[Callable[[], type[SimShard]], int]] = {
    "claim told before the write": (lambda: _ClaimsBeforeTheWrite, 2),
    "lapsed claimed though not recognised": (lambda: _with(_ClaimsWhateverLapsed), 5),
    "turns given to whoever comes": (lambda: _with_outbox(_AnyTurn), 0),
    "lane head ignored": (lambda: _with_outbox(_LooseLines), 1),
    "aside forgotten": (lambda: _with_outbox(_AsideForEver), 4),
    "intent dropped where it is claimed at once": (lambda: _with(_LosesIntents), 4),
    "one intent a batch": (lambda: _with(_KeepsNoIntentOfTwo), 2),
    "token ignored on postpone": (lambda: _with(_PostponesForAnyone), 11),
    "cancelled under way": (lambda: _with(_CancelsWhatIsUnderWay), 3),
    "outbox not recalled": (lambda: _NeverRecalls, 0),
    "outbox kept after a failed batch": (lambda: _ServesClaimsAfterAnError, 1),
}
"""By name, and the seed that shows it today: where that no longer does, others are tried."""
