"""Mistakes that a shard might make, planted on purpose: the simulator has to find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from idemactor.core.commands import Command, Release
from idemactor.core.decision import Decision
from idemactor.core.keys import Identity
from idemactor.core.ledger import Ledger
from idemactor.core.record import Entry, State
from idemactor.core.replies import Reply
from idemactor.shard.alarms import AlarmHeap
from idemactor.shard.mailbox import Envelope
from idemactor.storage.base import Opened
from tests.sim.disks import SimEngine, SimJournaled
from tests.sim.node import SimShard
from tests.sim.world import Parts


class RepliesBeforeTheWrite(SimShard):
    """Hands the answers out as soon as they are decided."""

    async def _write(self, ledger: Ledger[Envelope], turn: Any) -> None:
        replies: list[tuple[Envelope, Reply]] = ledger.finish().replies
        self._hand_out(replies)
        told = list(replies)
        replies.clear()
        turn.envelopes = [e for e in turn.envelopes if all(e is not envelope for envelope, _ in told)]
        await super()._write(ledger, turn)


class _BlindLedger(Ledger[Envelope]):
    """Decides every command of a batch on what was there before the batch."""

    def begin(self, now: int) -> None:
        super().begin(now)
        self.first: dict[Identity, Entry | None] = {}

    def _decide(self, command: Command) -> Decision:
        identity = command.identity
        then = self.first.setdefault(identity, self._cache.get(identity))
        if then is not None:
            self._cache[identity] = then
        else:
            self._cache.pop(identity, None)
        return super()._decide(command)


class _ReleasesForAnyone(Ledger[Envelope]):
    """Ignores the token of a release."""

    def apply(self, ticket: Envelope, command: Command) -> None:
        entry = self._cache.get(command.identity)
        if isinstance(command, Release) and entry is not None and entry.record is not None:
            command = replace(command, token=entry.record.token)
        super().apply(ticket, command)


class _SweepsTheUnresolved(Ledger[Envelope]):
    """Lets the alarm of a lapsed lease delete its record."""

    def sweep(self, identity: Identity) -> None:
        entry = self._cache.get(identity)
        due = entry is not None and entry.alarm_at is not None and entry.alarm_at <= self._now
        if entry is not None and due and entry.record is not None and entry.record.state is State.PENDING:
            self._replace(identity, entry, None)
        else:
            super().sweep(identity)


def _with(ledger_type: type[Ledger[Envelope]]) -> Parts:
    class Planted(SimShard):
        pass

    Planted.ledger_type = ledger_type
    return Parts(Planted)


class ServesAfterAnError(SimShard):
    """Tells the callers of a failed batch the truth, and goes on with what it remembers."""

    def _drop(self, turn: Any, error: Exception) -> None:
        ledger = self._ledger
        super()._drop(turn, error)
        assert isinstance(self._engine, SimEngine | SimJournaled)
        self._engine.pretend_whole()
        self._ledger, self._spoilt = ledger, False


class KeepsNoTokens(SimShard):
    """Forgets after a failure which tokens it had given out, and starts over from the number of its entries."""

    def _read(self, opened: Opened) -> Ledger[Envelope]:
        records = sum(tally.records for tally in opened.tallies.values())
        return super()._read(Opened(records, opened.latest_ms, opened.tallies))

    def _drop(self, turn: Any, error: Exception) -> None:
        super()._drop(turn, error)
        self._last_token = 0


class LosesWaiters(SimShard):
    """Lets the callers that wait go without a word when a write fails."""

    def _drop(self, turn: Any, error: Exception) -> None:
        if self._ledger is not None:
            self._ledger.abandon()
        super()._drop(turn, error)


class ForgetsAlarmsWhenEvicted(SimShard):
    """Leaves memory without keeping the alarm that brings it back."""

    async def _rest(self, ledger: Ledger[Envelope], turn: Any) -> None:
        await super()._rest(ledger, turn)
        if self._ledger is None and not self._spoilt:
            self._alarms._heap = AlarmHeap()


PLANTED: dict[str, Callable[[], Parts]] = {
    "reply before the write": lambda: Parts(RepliesBeforeTheWrite),
    "second command of a batch blind to the first": lambda: _with(_BlindLedger),
    "serving after a storage error": lambda: Parts(ServesAfterAnError),
    "token ignored on release": lambda: _with(_ReleasesForAnyone),
    "alarm that deletes an unresolved record": lambda: _with(_SweepsTheUnresolved),
    "tokens forgotten at a reload": lambda: Parts(KeepsNoTokens),
    "waiters lost when a write fails": lambda: Parts(LosesWaiters),
    "alarms lost by an eviction": lambda: Parts(ForgetsAlarmsWhenEvicted),
}
