"""Mistakes that storage, clocks, quotas and stops might make, planted on purpose: the simulator has to find each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import trio

from idemactor.core.clock import Clock
from idemactor.core.commands import Command, Forget
from idemactor.core.decision import Fresh
from idemactor.core.ledger import Ledger, Work
from idemactor.core.policy import Policy
from idemactor.core.record import State
from idemactor.shard.mailbox import Envelope
from idemactor.storage.base import Batch, CommitResult, Opened
from tests.sim.disks import SimJournaled, Storage
from tests.sim.node import SimShard
from tests.sim.world import Parts


class _LetsGoTooEarly(SimJournaled):
    """Has the journal let go of what the file does not have yet."""

    async def _append(self, batch: Batch, body: bytes) -> CommitResult:
        result = await super()._append(batch, body)
        if result is CommitResult.OK:
            self._journal.applied(self._shard, self._seq)
        return result


class _WritesTheOldest(SimJournaled):
    """Writes behind what a key was first, and not what it is."""

    def _lay_over(self, batch: Batch, size: int) -> None:
        known = self._overlay._puts
        batch = replace(batch, puts=[known.get(entry.id, entry) for entry in batch.puts])
        super()._lay_over(batch, size)


class _ForgetsTheOverlay(SimJournaled):
    """Drops what was to be written behind where that fails."""

    async def _write(self) -> CommitResult:
        result = await super()._write()
        if result is not CommitResult.OK:
            self._forget_overlay()
        return result


class _SharesCounts(SimJournaled):
    """Lets the shard count in what is still to be written to its file."""

    async def _replay(self, opened: Opened) -> Opened:
        opened = await super()._replay(opened)
        if self._overlay.batches:
            opened.tallies.update(self._overlay._batch.tallies)
        return opened


class _TakesUnknownForWritten(SimJournaled):
    """Takes a batch of which nobody knows for one that is there."""

    async def _append(self, batch: Batch, body: bytes) -> CommitResult:
        before = self._seq
        result = await super()._append(batch, body)
        if result is not CommitResult.UNKNOWN:
            return result
        self._file.broken = False
        self._lay_over(batch, len(body))
        self._seq = before
        return CommitResult.OK


def _with_engine(engine_type: type[SimJournaled]) -> Parts:
    class Planted(Storage):
        pass

    Planted.engine_type = engine_type
    return Parts(storage_type=Planted)


class _FollowsTheWall(Clock):
    """Shows what the clock on the wall shows."""

    def __init__(self, wall_ms: Callable[[], int], floor_ms: int) -> None:
        super().__init__(floor_ms, trio.current_time)
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        return self._wall_ms()


class _GoesBack(Clock):
    """Starts with the wall clock, however late the disk says that it is."""


class _CountsNobody(Ledger[Envelope]):
    """Has room for everybody."""

    def _fresh(self, command: Command, policy: Policy) -> Fresh:
        return replace(super()._fresh(command, policy), room=True)


class _NeverCountsDown(SimShard):
    """Counts the keys that came, and not those that went."""

    async def _decide(self, ledger: Ledger[Envelope], turn: Any) -> None:
        before = {key: tally.records for key, tally in ledger.tallies.items()}
        await super()._decide(ledger, turn)
        for key, tally in ledger.tallies.items():
            self._census.add(self.number, key, max(0, before.get(key, 0) - tally.records))


class _ForgetsByForce(Ledger[Envelope]):
    """Forgets whatever it is told to, settled or not."""

    def apply(self, ticket: Envelope, command: Command) -> None:
        if isinstance(command, Forget):
            command = replace(command, force=True)
        super().apply(ticket, command)


class _KeepsNoEvidence(Ledger[Envelope]):
    """Says that a commit came too late, and keeps no proof of it."""

    def finish(self) -> Work[Envelope]:
        work = super().finish()
        for incident in work.incidents:
            self._tally(incident.identity[:2]).incidents -= 1
        work.incidents.clear()
        return work


class _LosesWhatNobodyAsksFor(Ledger[Envelope]):
    """Lets go of what an operator would have to settle, once its lease is long over."""

    def sweep(self, identity: Any) -> None:
        entry = self._cache.get(identity)
        super().sweep(identity)
        swept = self._cache.get(identity)
        lapsed = swept is not None and swept.record is not None and swept.record.state is State.LAPSED
        if lapsed and swept is not entry and identity.key.endswith("1"):
            self._replace(identity, swept, None)


class _LetsThemWait(SimShard):
    """Leaves those who wait where they are when the server is told to stop."""

    def stop_waiting(self) -> None:
        """Nothing."""


class _LeavesMail(SimShard):
    """Stops with mail in its box."""

    def close(self) -> None:
        self._mailbox.take(1_000)
        super().close()


def _with(ledger_type: type[Ledger[Envelope]]) -> Parts:
    class Planted(SimShard):
        pass

    Planted.ledger_type = ledger_type
    return Parts(Planted)


PLANTED_STORAGE: dict[str, Callable[[], Parts]] = {
    "journal lets go before the file has it": lambda: _with_engine(_LetsGoTooEarly),
    "old version written behind": lambda: _with_engine(_WritesTheOldest),
    "what was to be written behind dropped when that fails": lambda: _with_engine(_ForgetsTheOverlay),
    "counts shared with what is to be written": lambda: _with_engine(_SharesCounts),
    "unknown batch taken for written": lambda: _with_engine(_TakesUnknownForWritten),
    "clock that follows the wall": lambda: Parts(clock=lambda start, _steady, wall: _FollowsTheWall(wall, start)),
    "clock that goes back at a restart": lambda: Parts(clock=lambda _start, steady, wall: _GoesBack(wall(), steady)),
    "quota not counted": lambda: _with(_CountsNobody),
    "quota never counted down": lambda: Parts(_NeverCountsDown),
    "forget without force frees what is unsettled": lambda: _with(_ForgetsByForce),
    "late commit without an incident": lambda: _with(_KeepsNoEvidence),
    "lapsed record lost in silence": lambda: _with(_LosesWhatNobodyAsksFor),
    "waiters left waiting by a stop": lambda: Parts(_LetsThemWait),
    "mail left by a stop": lambda: Parts(_LeavesMail),
}
